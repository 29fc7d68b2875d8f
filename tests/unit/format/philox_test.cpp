// docs/algorithm.md, section 2.1.
#include "core/format/philox.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace pkv::format {
namespace {

using Words = std::array<uint32_t, 4>;

TEST_CASE("philox: the vectors of the specification") {
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
  constexpr uint32_t kOnes = 0xffffffffU;
  CHECK(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
  CHECK(philox4x32_10({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                      {0xa4093822U, 0x299f31d0U}) ==
        Words{0xd16cfe09U, 0x94fdcceb, 0x5001e420U, 0x24126ea1U});
}

TEST_CASE("signs: bit j of the words in order, 1 is -1") {
  // Seed 0, stream 0, j < 128 reads the first vector above.
  const Words words = {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U};
  for (int j = 0; j < 128; ++j) {
    const bool is_set = ((words[static_cast<std::size_t>(j / 32)] >> (j % 32)) & 1U) != 0;
    CHECK(sign_element(0, 0, j) == (is_set ? -1.0F : 1.0F));
  }
}

TEST_CASE("signs: counter (j / 128, stream, 0, 0), key low then high half of the seed") {
  constexpr uint64_t kSeed = 0x299f31d0a4093822U;
  for (const uint32_t stream : {kStreamKey1, kStreamKey2, kStreamValue1, kStreamValue2}) {
    for (const int64_t j : {int64_t{0}, int64_t{31}, int64_t{32}, int64_t{127}, int64_t{128},
                            int64_t{575}, int64_t{128} * 0xfffffff0}) {
      const Words words =
          philox4x32_10({static_cast<uint32_t>(j / 128), stream, 0, 0}, {0xa4093822U, 0x299f31d0U});
      const uint32_t word = words[static_cast<std::size_t>(j % 128 / 32)];
      CHECK(sign_element(kSeed, stream, j) == (((word >> (j % 32)) & 1U) != 0 ? -1.0F : 1.0F));
    }
  }
}

std::vector<float> signs(uint64_t seed, uint32_t stream, bool backwards) {
  std::vector<float> out(576);
  for (int i = 0; i < 576; ++i) {
    const int j = backwards ? 575 - i : i;
    out[static_cast<std::size_t>(j)] = sign_element(seed, stream, j);
  }
  return out;
}

TEST_CASE("signs: any order of evaluation, and every stream and half of the seed counts") {
  constexpr uint64_t kSeed = 20260101;
  const std::vector<float> first = signs(kSeed, kStreamKey1, false);
  CHECK(signs(kSeed, kStreamKey1, true) == first);
  CHECK(signs(kSeed, kStreamKey2, false) != first);
  CHECK(signs(kSeed, kStreamValue1, false) != first);
  CHECK(signs(kSeed, kStreamValue2, false) != signs(kSeed, kStreamValue1, false));
  CHECK(signs(kSeed + 1, kStreamKey1, false) != first);
  CHECK(signs(kSeed + (uint64_t{1} << 32), kStreamKey1, false) != first);
  // A fair coin: 576 tosses stay within 5 standard deviations (12 each) of 288.
  int minus = 0;
  for (const float sign : first) minus += sign < 0 ? 1 : 0;
  CHECK(minus > 288 - 60);
  CHECK(minus < 288 + 60);
}

static_assert(sign_element(0, 0, 0) == -1.0F);  // bit 0 of 6627e8d5 is 1

}  // namespace
}  // namespace pkv::format
