#include "core/runtime/json_writer.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pkv {
namespace {

std::string written(std::string_view text) { return JsonWriter().value(text).text(); }

TEST_CASE("json: objects and arrays, nested and empty") {
  JsonWriter json;
  json.open('{').field("a", 1).field("b", "x").key("c").open('[').value(true).open('{').close('}');
  json.open('[').close(']').value(int64_t{-5}).close(']').list("d", std::vector<int>{}).close('}');
  CHECK(json.text() == R"({"a": 1, "b": "x", "c": [true, {}, [], -5], "d": []})");
}

TEST_CASE("json: every control character, quote and backslash is escaped") {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  CHECK(nlohmann::json::parse(written(all)).get<std::string>() == all);
}

TEST_CASE("json: UTF-8 is kept, other bytes become U+FFFD each") {
  const std::string kept =
      "\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 "
      "\xf4\x8f\xbf\xbf";
  CHECK(nlohmann::json::parse(written(kept)).get<std::string>() == kept);
  const std::string r = "\xef\xbf\xbd";
  CHECK(written("\x80") == "\"" + r + "\"");
  CHECK(written("\xc1\xbf") == "\"" + r + r + "\"");          // too long a form
  CHECK(written("\xe0\x9f\xbf") == "\"" + r + r + r + "\"");  // likewise
  CHECK(written("\xed\xa0\x80") == "\"" + r + r + r + "\"");  // a surrogate
  CHECK(written("\xf0\x8f\xbf\xbf") == "\"" + r + r + r + r + "\"");
  CHECK(written("\xf4\x90\x80\x80") == "\"" + r + r + r + r + "\"");  // past U+10FFFF
  CHECK(written("\xf5z") == "\"" + r + "z\"");
  CHECK(written("a\xe2\x82") == "\"a" + r + r + "\"");  // cut off
  CHECK(written("\xc3(") == "\"" + r + "(\"");
}

}  // namespace
}  // namespace pkv
