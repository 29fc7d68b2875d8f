#include "tools/reader.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tools/reader_npy.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

// A file of its own, gone at the end.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& extension, const std::string& content)
      : path_("/tmp/pkv_reader_test_" + std::to_string(::getpid()) + extension) {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    std::fclose(file);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string fvecs(int rows, int dim) {
  std::string content;
  for (int i = 0; i < rows; ++i) {
    content.append(reinterpret_cast<const char*>(&dim), 4);
    for (int j = 0; j < dim; ++j) {
      const auto value = static_cast<float>(i * dim + j);
      content.append(reinterpret_cast<const char*>(&value), 4);
    }
  }
  return content;
}

TEST_CASE("reader: file and tensor of an argument") {
  CHECK(split_tensor_name("a.npz:k").path == "a.npz");
  CHECK(split_tensor_name("a.npz:k").tensor == "k");
  CHECK(split_tensor_name("a.npz").tensor.empty());
  CHECK(split_tensor_name("c:/a.npz").path == "c:/a.npz");
  CHECK(split_tensor_name("c:/a.npz:k").path == "c:/a.npz");
  CHECK(split_tensor_name("a.npz:").path == "a.npz:");
  CHECK(split_tensor_name("a:b:c").path == "a:b");
}

TEST_CASE("reader: an .npy header in any order and spacing") {
  const auto header =
      parse_npy_header("{ 'shape':(3,),\"fortran_order\" : True,'descr':'<f2'}   \n", "test");
  REQUIRE(header.ok());
  CHECK(header->shape == std::vector<int64_t>{3});
  CHECK(header->fortran_order);
  CHECK(header->descr == "<f2");
  const auto scalar =
      parse_npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "test");
  REQUIRE(scalar.ok());
  CHECK(scalar->shape.empty());
}

TEST_CASE("reader: any piece of an .fvecs file is what was written there") {
  const TemporaryFile file(".fvecs", fvecs(/*rows=*/5, /*dim=*/3));
  auto reader = open_tensor({file.path(), ""}, "k");
  REQUIRE(reader.ok());
  CHECK((*reader)->info().shape == std::vector<int64_t>{5, 3});
  for (int64_t begin = 0; begin <= 15; ++begin) {
    for (int64_t count = 0; begin + count <= 15; ++count) {
      std::vector<float> values(static_cast<size_t>(count) + 1, -1);
      REQUIRE((*reader)->read(begin, count, values.data()).ok());
      for (int64_t i = 0; i < count; ++i) {
        CHECK(values[static_cast<size_t>(i)] == static_cast<float>(begin + i));
      }
      CHECK(values.back() == -1);
    }
  }
  float beyond[4];
  CHECK(exit_code((*reader)->read(12, 4, beyond)) == kBadInput);
}

TEST_CASE("reader: many rows of .fvecs, read across the buffer's end") {
  // Records of 4 + 4 * 1021 bytes; a buffer holds 256 of them.
  const TemporaryFile file(".fvecs", fvecs(/*rows=*/600, /*dim=*/1021));
  auto reader = open_tensor({file.path(), ""}, "k");
  REQUIRE(reader.ok());
  std::vector<float> values(400 * 1021);
  REQUIRE((*reader)->read(150 * 1021 + 7, 400 * 1021, values.data()).ok());
  for (size_t i = 0; i < values.size(); i += 97) {
    CHECK(values[i] == static_cast<float>(150 * 1021 + 7 + i));
  }
}

std::string npy() {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n";
  std::string content("\x93NUMPY\x01\x00", 8);
  content += static_cast<char>(header.size());
  content += '\0';
  return content + header + std::string(48, 'x');
}

std::string safetensors() {
  const std::string header =
      R"({"__metadata__": {"a": "b"}, "k": {"dtype": "F32", "shape": [3, 4], )"
      R"("data_offsets": [0, 48]}})";
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size());
  return content + header + std::string(48, 'x');
}

// Opens and reads all of it; whatever comes out, nothing may break.
bool can_be_read(const std::string& path) {
  auto reader = open_tensor({path, ""}, "k");
  if (!reader.ok()) return false;
  std::vector<char> all(static_cast<size_t>((*reader)->elements() * 8));
  return (*reader)->read(0, (*reader)->elements(), all.data()).ok();
}

TEST_CASE("reader: files with changed, missing and added bytes never break it") {
  uint32_t state = 1;
  const auto random = [&state](size_t limit) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % limit;
  };
  const std::pair<std::string, std::string> kinds[] = {
      {".npy", npy()}, {".safetensors", safetensors()}, {".fvecs", fvecs(3, 4)}};
  for (const auto& [extension, sound] : kinds) {
    CAPTURE(extension);
    CHECK(can_be_read(TemporaryFile(extension, sound).path()));
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      std::string content = sound;
      for (size_t edits = 1 + random(3); edits > 0; --edits) {
        const size_t at = random(content.size());
        switch (random(4)) {
          case 0: content[at] = static_cast<char>(random(256)); break;
          case 1: content[at] = static_cast<char>(content[at] ^ (1 << random(8))); break;
          case 2: content.erase(at, 1 + random(8)); break;
          default: content.insert(at, 1, "0123456789[]{},:\"-"[random(18)]); break;
        }
        if (content.empty()) content = "x";
      }
      refused += can_be_read(TemporaryFile(extension, content).path()) ? 0 : 1;
    }
    CHECK(refused > 500);
  }
}

}  // namespace
}  // namespace pkv::cli
