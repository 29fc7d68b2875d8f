#include "core/base/text.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace pkv {
namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

// U+0080 to U+009F are control characters too.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::size_t utf8_cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text.size();
  std::size_t length = limit;
  while (length > 0 && is_continuation(text[length])) --length;
  return length;
}

std::size_t utf8_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const bool is_too_long =
      (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = byte(0) == 0xed && byte(1) > 0x9f;
  const bool is_past_end = byte(0) == 0xf4 && byte(1) > 0x8f;
  return is_too_long || is_surrogate || is_past_end ? 0 : length;
}

std::string quote(std::string_view text, std::size_t limit) {
  std::string_view left = text.substr(0, utf8_cut(text, limit));
  const bool is_cut = left.size() < text.size();
  std::string out = "\"";
  while (!left.empty()) {
    const std::size_t length = utf8_character(left);
    const std::string_view character = left.substr(0, length == 0 ? 1 : length);
    if (length >= 2 && !is_control(character)) {
      out += character;
    } else {
      out += absl::CEscape(to_absl(character));
    }
    left.remove_prefix(character.size());
  }
  return out + (is_cut ? "...\"" : "\"");
}

void make_plain(std::span<char> text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest(text.data() + i, text.size() - i);
    const std::size_t length = utf8_character(rest);
    const bool is_kept = length > 0 && (rest[0] == '\n' || !is_control(rest.substr(0, length)));
    const std::size_t bytes = length == 0 ? 1 : length;
    if (!is_kept) std::memset(&text[i], '?', bytes);
    i += bytes;
  }
}

std::string join_choices(std::span<const std::string> choices) {
  if (choices.empty()) return "";
  if (choices.size() == 1) return choices.front();
  const auto head = choices.first(choices.size() - 1);
  return str_cat(absl::StrJoin(head.begin(), head.end(), ", "), " or ", choices.back());
}

}  // namespace pkv
