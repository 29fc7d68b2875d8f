#include "tests/fuzz/fuzz.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

// Memory that a damaged number asks for is refused, as by a system that has less. Freed memory is
// held back for a while, not for long, and stacks of allocations are short: inputs are many, and
// one that is a finding is run again under longer ones (ASAN_OPTIONS).
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=512:quarantine_size_mb=8:"
         "malloc_context_size=8:allocator_release_to_os_interval_ms=-1";
}
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace pkv::fuzz {

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

namespace {

// Whether `text` is UTF-8 whose characters are above the control characters, line ends aside.
bool is_plain(std::string_view text) {
  const auto at = [text](std::size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t more = at(i) < 0x80 ? 0 : at(i) < 0xe0 ? 1 : at(i) < 0xf0 ? 2 : 3;
    uint32_t character = more == 0 ? at(i) : at(i) & (0x3f >> more);
    if (more > 0 && (at(i) < 0xc0 || at(i) >= 0xf8)) return false;
    for (std::size_t k = 1; k <= more; ++k) {
      if ((at(i + k) & 0xc0) != 0x80) return false;
      character = character << 6 | (at(i + k) & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    const bool is_control =
        (character < 0x20 && character != '\n') || (character >= 0x7f && character < 0xa0);
    const bool is_surrogate = character >= 0xd800 && character < 0xe000;
    if (character < kLeast[more] || character > 0x10ffff || is_control || is_surrogate) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

}  // namespace

void require_text(std::string_view text) {
  constexpr std::size_t kMost = 4000;
  require(!text.empty(), "a refusal has a text");
  if (text.size() <= kMost && is_plain(text)) return;
  std::fprintf(stderr, "%zu bytes:", text.size());
  for (const char c : text.substr(0, 200)) {
    std::fprintf(stderr, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", static_cast<unsigned char>(c));
  }
  std::fputc('\n', stderr);
  require(false, "a text for people has a length and characters for people");
}

Folder::Folder()
    : test::Folder(std::filesystem::is_directory("/dev/shm")
                       ? std::filesystem::path("/dev/shm")
                       : std::filesystem::temp_directory_path()) {}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace pkv::fuzz
