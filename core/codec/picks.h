// Which keys the sample's queries pick: the weights of the second pass of fit = picked.
// docs/algorithm.md, section 2.2.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/codec/params.h"
#include "core/runtime/stream.h"
#include "core/runtime/temporaries.h"

namespace pkv {

// [h, n]: for each key the number of query positions that picked it. `first_pass` are the
// parameters of the first pass; keys [h, n, d], queries [hq, m, d]. Waits for the stream.
// RESOURCE_EXHAUSTED: no room on the device for the records and votes of n keys.
absl::StatusOr<std::vector<int32_t>> count_picks_sync(const Stream& stream, Temporaries& memory,
                                                      const CodecParams& first_pass,
                                                      const TensorView& keys,
                                                      const TensorView& queries);

}  // namespace pkv
