// CodecParams: the fitted numbers of one codec, with everything that follows from them.
// docs/algorithm.md, section 2. A value type on the host; how it reaches a device is core/runtime.
// Not here: the fit (fit.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/codec/geometry.h"
#include "pariskv/pariskv_backend.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// Elements 0.. of sign vector `stream` (format::kStreamKey1 ..), each +1 or -1 (2.1).
void fill_signs(uint64_t seed, uint32_t stream, std::span<float> out);

class CodecParams {
 public:
  // Checks and copies. INVALID_ARGUMENT names array, head, coordinate and value:
  //   center        [h, d] finite
  //   balance       [h, d] finite and > 0, its reciprocal in fp32 likewise
  //   value_center  [h, dv] finite, with a value sketch; else empty
  static absl::StatusOr<CodecParams> create(const pkv_geometry& geometry,
                                            std::span<const float> center,
                                            std::span<const float> balance,
                                            std::span<const float> value_center);

  const pkv_geometry& geometry() const { return geometry_; }
  std::span<const float> center() const { return center_; }              // [h, d]
  std::span<const float> balance() const { return balance_; }            // [h, d]
  std::span<const float> inv_balance() const { return inv_balance_; }    // [h, d] fp32(1 / balance)
  std::span<const float> signs_1() const { return signs_1_; }            // [d]
  std::span<const float> signs_2() const { return signs_2_; }            // [d]; empty if unused
  std::span<const float> value_center() const { return value_center_; }  // [h, dv] sketch only
  std::span<const float> value_signs_1() const { return value_signs_1_; }  // [dv] sketch only
  std::span<const float> value_signs_2() const { return value_signs_2_; }  // [dv]; empty if unused

  // For host backends: pointers into this object, valid while it stays where it is. NULL for empty.
  pkv_codec_params view() const;

 private:
  CodecParams() = default;

  pkv_geometry geometry_{};
  std::vector<float> center_;
  std::vector<float> balance_;
  std::vector<float> inv_balance_;
  std::vector<float> signs_1_;
  std::vector<float> signs_2_;
  std::vector<float> value_center_;
  std::vector<float> value_signs_1_;
  std::vector<float> value_signs_2_;
};

}  // namespace pkv
