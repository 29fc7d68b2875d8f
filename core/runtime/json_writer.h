// JSON texts, written from front to back. A library would do, but those at hand allocate in their
// destructors, and end the program where there is no memory left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pkv {

// {"name": "x", "sizes": [1, 2]}
//   JsonWriter json;
//   json.open('{').field("name", "x");
//   json.key("sizes").open('[').value(1).value(2).close(']').close('}');
class JsonWriter {
 public:
  // Of an object '{' or an array '['; close with '}' or ']'.
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& key(std::string_view name);

  // Bytes that are no UTF-8 become U+FFFD each.
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(int64_t number);
  JsonWriter& value(int32_t number) { return value(int64_t{number}); }
  JsonWriter& value(bool flag);

  template <class Value>
  JsonWriter& field(std::string_view name, Value&& content) {
    return key(name).value(std::forward<Value>(content));
  }
  template <class List>
  JsonWriter& list(std::string_view name, const List& contents) {
    key(name).open('[');
    for (const auto& content : contents) value(content);
    return close(']');
  }

  const std::string& text() const { return text_; }

 private:
  void separate();

  std::string text_;
  bool is_first_ = true;  // nothing stands in front of the next value in its object or array
};

}  // namespace pkv
