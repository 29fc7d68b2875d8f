// Stage attend on a place. docs/algorithm.md, section 8.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/conformance/rerank_stage.h"
#include "tests/conformance/world.h"

namespace pkv::conformance {

// K and V of tokens that are attended in full.
struct PartInput {
  Tensor keys;                                  // [b, h, t, d]
  std::optional<Tensor> values;                 // [b, h, t, dv]; none: a prefix of the keys
  std::optional<std::vector<int64_t>> lengths;  // [b]; none: t for all
  int64_t page_tokens = 0;                      // 0: not in pages
  std::vector<int64_t> starts = {};             // [b] in pages, else empty
};

struct AttendInput {
  Tensor queries;  // [b, hq, d]
  Batch batch;
  int32_t query_heads = 1;
  int32_t tail = PKV_TAIL_DROP;
  float scale = 0.1F;
  float soft_cap = 0.0F;
  std::vector<float> sink_logits;  // [hq]; empty: none
  std::vector<PartInput> parts;
  int32_t k = 0;
  std::optional<PartInput> rows;  // of k slots; without lengths
  Rows<int32_t> positions;        // [b * h][k]
  std::vector<int32_t> counts;    // [b * h]
  Rows<int32_t> candidates;       // [b * h][count]; tail other than drop
  int64_t candidates_stride = 0;
  Rows<float> estimates;        // [b * hq][count]
  std::vector<float> rest_lse;  // [b * hq]
  int32_t tail_samples = 512;
  Rows<float> sample_estimates;  // [b * hq][T]; tails that read samples only
  pkv_dtype output_dtype = PKV_DTYPE_F32;
  Layout output_layout = Layout::kStrided;
  bool wants_lse = true;
};

struct Attention {
  Dense output;            // [b, hq, dv]
  std::vector<float> lse;  // [b * hq]; empty if not wanted

  template <class F>
  static void each(F f, const Attention& a, const Attention& b) {
    f("output", a.output, b.output);
    f("lse", a.lse, b.lse);
  }
};

// Whether a tail looks at samples and sketched values.
inline bool reads_samples(int32_t tail) {
  return tail == PKV_TAIL_SKETCH || tail == PKV_TAIL_SAMPLED;
}

// `zone`: its value sums and counts, and for tails that read samples its records.
Attention run_attend(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
                     const AttendInput& input);

}  // namespace pkv::conformance
