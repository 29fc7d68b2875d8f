// What a fuzz target is: a property of bytes from outside, in a file of its own. It is linked with
// libFuzzer (libfuzzer.cpp) in preset `fuzz`, and with driver.cpp, which mutates by itself,
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/common/folder.h"

namespace pkv::fuzz {

using Input = std::span<const uint8_t>;

// Of each target. Good inputs to start from, beside those of its corpus:
std::vector<std::string> seeds();
// Aborts, or fails under a sanitizer, if the property does not hold.
void run(Input input);

// Ends the program with this text unless `holds`.
void require(bool holds, std::string_view what);
// A text for people that came of a refusal: not empty, no longer than a screen, UTF-8 without
// control characters but line ends, whatever the input was.
void require_text(std::string_view text);

// Numbers and texts off an input; zeros and "" behind its end.
class Bytes {
 public:
  explicit Bytes(Input input) : rest_(input) {}
  bool empty() const { return rest_.empty(); }
  template <class Number>
  Number number() {
    Number value{};
    const std::size_t count = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  // 0 .. limit - 1
  uint32_t below(uint32_t limit) {
    return limit <= 256 ? byte() % limit : number<uint16_t>() % limit;
  }
  bool one_in(uint32_t n) { return below(n) == 0; }
  // Up to the next `end`, which is dropped.
  std::string text(uint8_t end) {
    std::size_t count = 0;
    while (count < rest_.size() && rest_[count] != end) ++count;
    std::string out(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(count));
    rest_ = rest_.subspan(std::min(rest_.size(), count + 1));
    return out;
  }

 private:
  Input rest_;
};

// A file in memory that can be opened by its path, filled anew for each input (memory_files.cpp).
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  void fill(Input bytes) { bytes_.assign(bytes.begin(), bytes.end()); }
  const std::string& path() const { return path_; }

 private:
  std::vector<uint8_t> bytes_;
  std::string path_;
};
// What the memory file with this path holds; NULL if there is none.
const std::vector<uint8_t>* memory_file(std::string_view path);

// A folder in memory where the system has one, gone with the object.
class Folder : public test::Folder {
 public:
  Folder();
};

std::string read_file(const std::string& path);
inline Input as_input(std::string_view bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace pkv::fuzz
