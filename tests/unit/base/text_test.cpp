#include "core/base/text.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pkv {
namespace {

TEST_CASE("text: str_cat takes every kind of string and numbers") {
  const std::string owned = "c";
  const std::string_view viewed = "d";
  CHECK(str_cat("a", 1, owned, viewed, int64_t{-5}, absl::string_view("e"), 2.5) == "a1cd-5e2.5");
  CHECK(str_cat() == "");
}

TEST_CASE("text: views convert between both libraries without copying") {
  const std::string_view text = "abc";
  CHECK(to_absl(text).data() == text.data());
  CHECK(to_absl(text).size() == 3);
  CHECK(to_std(to_absl(text)) == text);
}

TEST_CASE("text: a cut never splits a character") {
  const std::string_view euro =
      "a\xe2\x82\xac"
      "b";  // 1, 3 and 1 bytes
  CHECK(utf8_cut(euro, 5) == 5);
  CHECK(utf8_cut(euro, 4) == 4);
  CHECK(utf8_cut(euro, 3) == 1);
  CHECK(utf8_cut(euro, 2) == 1);
  CHECK(utf8_cut(euro, 1) == 1);
  CHECK(utf8_cut(euro, 0) == 0);
  CHECK(utf8_cut("\x80\x80\x80", 2) == 0);  // no character at all
}

TEST_CASE("text: what leaves the library is UTF-8 without control characters") {
  const auto plain = [](std::string text) {
    make_plain(text);
    return text;
  };
  CHECK(plain("a\n\xe2\x82\xac") == "a\n\xe2\x82\xac");
  CHECK(plain("\x1b[0m\r\x7f") == "?[0m??");
  CHECK(plain("\xc2\x9b\xc2\xa0") == "??\xc2\xa0");
  CHECK(plain("\xe4x\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82") == "?x?????????");
  CHECK(plain("").empty());
}

TEST_CASE("text: quotes escape what would break a line, and shorten what is long") {
  CHECK(quote("plain") == "\"plain\"");
  CHECK(quote("a\"b\\c\n") == "\"a\\\"b\\\\c\\n\"");
  CHECK(quote("\xe2\x82\xac") == "\"\xe2\x82\xac\"");
  CHECK(quote("abcdef", 3) == "\"abc...\"");
  CHECK(quote("abc", 3) == "\"abc\"");
  CHECK(quote("ab\xe2\x82\xac", 3) == "\"ab...\"");
  CHECK(quote("") == "\"\"");
  CHECK(quote("a\xe4\xe2\x82") == "\"a\\344\\342\\202\"");  // no UTF-8
  CHECK(quote("\x1b[2J\xc2\x9b"
              "0m") == "\"\\033[2J\\302\\2330m\"");  // orders to a terminal
}

TEST_CASE("text: choices read as a sentence") {
  CHECK(join_choices(std::vector<std::string>{}) == "");
  CHECK(join_choices(std::vector<std::string>{"f32"}) == "f32");
  CHECK(join_choices(std::vector<std::string>{"f32", "f16"}) == "f32 or f16");
  CHECK(join_choices(std::vector<std::string>{"f32", "f16", "bf16"}) == "f32, f16 or bf16");
}

}  // namespace
}  // namespace pkv
