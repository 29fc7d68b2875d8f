// Small helpers for the texts of errors and logs.
// absl::string_view is std::string_view in some releases of Abseil and a type of its own in others:
// to_absl and to_std convert, and str_cat is absl::StrCat that takes both.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pkv {

inline absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view to_std(absl::string_view text) { return {text.data(), text.size()}; }

namespace internal {
template <class Part>
const Part& text_part(const Part& part) {
  return part;
}
inline absl::string_view text_part(const std::string_view& part) { return to_absl(part); }
}  // namespace internal

// The parts, one behind the other: strings of any kind and numbers.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  return absl::StrCat(internal::text_part(parts)...);
}

// The largest length <= limit to which `text` can be cut without splitting a UTF-8 character.
std::size_t utf8_cut(std::string_view text, std::size_t limit);

// Bytes of the UTF-8 character that `text`, which is not empty, begins with; 0 if it begins with
// none.
std::size_t utf8_character(std::string_view text);

// `text` between double quotes, control characters, quotes, backslashes and what is no UTF-8 as C
// escapes; what passes `limit` bytes becomes "...". For values that came from outside.
std::string quote(std::string_view text, std::size_t limit = 80);

// Puts '?' in the place of control characters but line ends, and of what is no UTF-8: for texts
// that leave the library whoever wrote them. The length stays.
void make_plain(std::span<char> text) noexcept;

// "f32", "f32 or f16", "f32, f16 or bf16": the choices of a refusal.
std::string join_choices(std::span<const std::string> choices);

// The same for numbers that `name` turns into words.
template <class Number, class Name>
std::string join_choices(std::span<const Number> numbers, Name name) {
  std::vector<std::string> words;
  for (const Number number : numbers) words.push_back(name(number));
  return join_choices(words);
}

}  // namespace pkv
