// Whether a build has code that a device runs. Host code without CUDA, so that it is tested
// without a device.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <system_error>

namespace pkv::cuda {

// `built`: as CMAKE_CUDA_ARCHITECTURES, but with commas: "80-real,90-real,120". Real code runs on
// devices of its generation (sm_8x) from its own minor version on; what is not "-real" is there as
// PTX too, which the driver compiles for every later device; "-virtual" is PTX alone. A letter
// behind the number ("90a", "100f") ties code to the device or the generation. Names ("native",
// "all") tell nothing, so every device passes: a launch then says what is missing.
inline bool has_code_for(std::string_view built, int major, int minor) {
  const int device = 10 * major + minor;
  while (!built.empty()) {
    const std::string_view entry = built.substr(0, built.find(','));
    built.remove_prefix(entry.size() < built.size() ? entry.size() + 1 : entry.size());
    int number = 0;
    const auto parsed = std::from_chars(entry.data(), entry.data() + entry.size(), number);
    if (parsed.ec != std::errc()) return true;
    std::string_view rest = entry.substr(static_cast<std::size_t>(parsed.ptr - entry.data()));
    const char letter = rest.empty() || rest[0] == '-' ? '\0' : rest[0];
    if (letter != '\0') rest.remove_prefix(1);
    const bool is_same_generation = number / 10 == major && number <= device;
    if (letter == 'a') {
      if (number == device) return true;
    } else if (rest != "-virtual" && is_same_generation) {
      return true;
    } else if (letter == '\0' && rest != "-real" && number <= device) {
      return true;
    } else if (letter == 'f' && is_same_generation) {
      return true;
    }
  }
  return false;
}

// Why a device is refused, as text of at most `bytes`.
inline void write_missing_code(char* text, std::size_t bytes, const char* built, int ordinal,
                               const char* name, int major, int minor) {
  std::snprintf(text, bytes,
                "device %d: %.80s is sm_%d%d, but this build has code for %.120s: build with "
                "-DCMAKE_CUDA_ARCHITECTURES=%d%d",
                ordinal, name, major, minor, built, major, minor);
}

}  // namespace pkv::cuda
