#include "tools/step_work.h"

#include <algorithm>
#include <cmath>

#include "pariskv/pariskv_backend.h"

namespace pkv::cli {

StepWork work_of(const StepShape& shape) {
  const auto& sizes = shape.sizes;
  const int64_t rows = shape.batch * shape.kv_heads;
  const int64_t stride = std::max<int64_t>(sizes.sketch_stride, 1);
  const bool reads_sketches = shape.tail == PKV_TAIL_SAMPLED || shape.tail == PKV_TAIL_SKETCH;
  const int64_t samples =
      shape.tail == PKV_TAIL_DROP ? 0 : std::min(shape.samples, (shape.n + stride - 1) / stride);
  const int64_t read = shape.candidates + samples;
  // A sketch of every key: candidates are tokens of their own.
  const int64_t sketches =
      reads_sketches ? samples + (shape.tail == PKV_TAIL_SKETCH ? shape.candidates : 0) : 0;
  StepWork work;
  work.vote_bytes = rows * shape.n * (sizes.signs + sizes.vote_factors);
  work.record_bytes = rows * read * (sizes.signs + sizes.codes + sizes.factors + sizes.value_norms);
  work.sketch_bytes = rows * sketches * sizes.sketch;
  work.fetched_bytes = rows * std::min(shape.k, shape.candidates) * shape.row_bytes;
  work.dense_bytes = rows * shape.dense * shape.row_bytes;
  work.zone_bytes = rows * shape.n * shape.row_bytes;
  work.estimates = shape.batch * shape.query_heads * read;
  work.samples = rows * samples;
  const int64_t of_candidates =
      sketches > samples ? shape.batch * shape.query_heads * shape.candidates : 0;
  (shape.has_4_bits ? work.sketches4 : work.sketches2) = of_candidates;
  return work;
}

int64_t candidates_of(double share, int64_t n, int64_t k) {
  const auto ppm = std::max<int64_t>(1, std::llround(share * 1e6));
  return std::min(n, std::max(k, (n * ppm + 999999) / 1000000));
}

int32_t tail_number(const std::string& name) {
  if (name == "drop") return PKV_TAIL_DROP;
  if (name == "mean") return PKV_TAIL_MEAN;
  return name == "sampled" ? PKV_TAIL_SAMPLED : PKV_TAIL_SKETCH;
}

absl::StatusOr<pkv_record_sizes> record_sizes(const pkv_codec* codec) {
  pkv_geometry geometry;
  CLI_RETURN_IF_ERROR(from_library(pkv_geometry_init(&geometry, sizeof geometry), About::kOptions));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_geometry(codec, &geometry), About::kOptions));
  pkv_record_sizes sizes = {};
  sizes.struct_size = sizeof sizes;
  CLI_RETURN_IF_ERROR(from_library(pkv_record_sizes_get(&geometry, &sizes), About::kOptions));
  return sizes;
}

}  // namespace pkv::cli
