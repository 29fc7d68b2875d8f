#include "core/index/file_checksum.h"

// Everything inline, so that the library does not depend on another one.
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <vector>

#include "core/format/levels.h"
#include "core/index/file_format.h"

namespace pkv {
namespace {

template <class Number, std::size_t kCount>
void append(std::vector<float>& all, const Number (&numbers)[kCount]) {
  for (const Number number : numbers) all.push_back(static_cast<float>(number));
}

}  // namespace

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->hash);
  XXH3_64bits_reset(&state_->hash);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&& other) noexcept = default;
Checksum& Checksum::operator=(Checksum&& other) noexcept = default;

void Checksum::add(const void* data, std::size_t bytes) {
  XXH3_64bits_update(&state_->hash, data, bytes);
}

uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->hash); }

uint64_t checksum(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t levels_checksum(int32_t codec, int32_t sketch_bits) {
  std::vector<float> all;
  if (codec == PKV_CODEC_POLAR4) {
    append(all, format::kPolarThresholds);
    append(all, format::kPolarLevels);
  } else if (codec == PKV_CODEC_SCALAR4) {
    append(all, format::kNormal4Thresholds);
    append(all, format::kScalar4Levels);
  } else {
    append(all, format::kNormal5Thresholds);
    append(all, format::kScalar5Levels);
  }
  if (sketch_bits == 2) {
    all.push_back(format::kNormal2Threshold);
    append(all, format::kNormal2Levels);
  } else if (sketch_bits == 4) {
    append(all, format::kNormal4Thresholds);
    append(all, format::kScalar4Levels);
  }
  return checksum(all.data(), all.size() * sizeof(float));
}

}  // namespace pkv
