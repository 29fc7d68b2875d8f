#include "core/runtime/json_writer.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/base/text.h"

namespace pkv {
namespace {

void append_ascii(std::string& out, char c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  if (static_cast<unsigned char>(c) >= 0x20) {
    out += c;
  } else {
    absl::StrAppend(&out, "\\u", absl::Hex(c, absl::kZeroPad4));
  }
}

}  // namespace

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  is_first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  is_first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ": ";
  is_first_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  text_ += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    if (length == 0) {
      text_ += "\xef\xbf\xbd";
    } else if (length == 1) {
      append_ascii(text_, text.front());
    } else {
      text_ += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  text_ += '"';
  return *this;
}

JsonWriter& JsonWriter::value(int64_t number) {
  separate();
  absl::StrAppend(&text_, number);
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) {
  separate();
  text_ += flag ? "true" : "false";
  return *this;
}

void JsonWriter::separate() {
  if (!is_first_) text_ += ", ";
  is_first_ = false;
}

}  // namespace pkv
