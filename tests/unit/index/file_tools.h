// Files of the tests: whole files as strings, and a .pkv taken apart by
// docs/format.md alone, changed, and put together again with checksums that fit.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/index/file_checksum.h"
#include "tests/common/folder.h"

namespace pkv::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  REQUIRE(file.good());
}

template <class Number>
Number number_at(const std::string& bytes, std::size_t offset) {
  Number number{};
  REQUIRE(offset + sizeof number <= bytes.size());
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

template <class Number>
void set_number(std::string& bytes, std::size_t offset, Number number) {
  REQUIRE(offset + sizeof number <= bytes.size());
  std::memcpy(bytes.data() + offset, &number, sizeof number);
}

// The checksum of a header that was changed.
inline void mend_header(std::string& bytes) { set_number(bytes, 56, checksum(bytes.data(), 56)); }

// Those of one table entry's section, of the table and of the header.
inline void mend(std::string& bytes) {
  const auto sections = number_at<uint32_t>(bytes, 24);
  for (std::size_t entry = 64; entry < 64 + 32 * std::size_t{sections}; entry += 32) {
    const auto offset = number_at<uint64_t>(bytes, entry + 8);
    const auto size = number_at<uint64_t>(bytes, entry + 16);
    if (offset > bytes.size() || size > bytes.size() - offset) continue;
    set_number(bytes, entry + 24, checksum(bytes.data() + offset, size));
  }
  set_number(bytes, 32, checksum(bytes.data() + 64, 32 * std::size_t{sections}));
  mend_header(bytes);
}

// Where a section's table entry is, and where the section is.
inline std::size_t entry_of(const std::string& bytes, const std::string& type) {
  const auto sections = number_at<uint32_t>(bytes, 24);
  for (std::size_t entry = 64; entry < 64 + 32 * std::size_t{sections}; entry += 32) {
    if (bytes.compare(entry, 4, type) == 0) return entry;
  }
  FAIL("no section ", type);
  return 0;
}
inline std::size_t section_at(const std::string& bytes, const std::string& type) {
  return number_at<uint64_t>(bytes, entry_of(bytes, type) + 8);
}

}  // namespace pkv::test
