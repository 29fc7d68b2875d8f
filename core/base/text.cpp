#include "core/base/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace pkv {

std::size_t utf8_cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text.size();
  const auto is_continuation = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
  };
  std::size_t length = limit;
  while (length > 0 && is_continuation(text[length])) --length;
  return length;
}

std::string quote(std::string_view text, std::size_t limit) {
  const std::string_view kept = text.substr(0, utf8_cut(text, limit));
  const std::string_view rest = kept.size() < text.size() ? "..." : "";
  return str_cat("\"", absl::Utf8SafeCEscape(to_absl(kept)), rest, "\"");
}

std::string join_choices(std::span<const std::string> choices) {
  if (choices.empty()) return "";
  if (choices.size() == 1) return choices.front();
  const auto head = choices.first(choices.size() - 1);
  return str_cat(absl::StrJoin(head.begin(), head.end(), ", "), " or ", choices.back());
}

}  // namespace pkv
