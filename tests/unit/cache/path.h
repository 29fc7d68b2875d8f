#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace pkv::test {

// A path of its own that is gone afterwards.
class Path {
 public:
  Path() {
    const char* folder = std::getenv("TMPDIR");
    text_ = std::string(folder != nullptr ? folder : "/tmp") + "/pkv_cache_test_" +
            std::to_string(::getpid()) + ".pkv";
  }
  ~Path() { std::remove(text_.c_str()); }
  const char* get() const { return text_.c_str(); }
  std::vector<char> read() const {
    std::ifstream file(text_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::vector<char>& bytes) const {
    std::ofstream file(text_, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string text_;
};

}  // namespace pkv::test
