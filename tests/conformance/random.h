// Random numbers of a case: a function of the seed and of nothing else, so the same on every
// machine. SplitMix64 (Steele, Lea, Flood, OOPSLA'14).
#pragma once

#include <cstdint>
#include <string_view>

namespace pkv::conformance {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  // 0 <= result < bound
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }

  // In [0, 1), a multiple of 2^-24.
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24F; }

  // Near a standard normal: the sum of four 16-bit uniforms, centred and scaled; below 3.5.
  float normal() {
    const uint64_t bits = next();
    int64_t sum = -2 * 65535;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>((bits >> (16 * i)) & 0xffff);
    return static_cast<float>(sum) * (1.7320508F / 65536.0F);
  }

 private:
  uint64_t state_;
};

// FNV-1a.
constexpr uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace pkv::conformance
