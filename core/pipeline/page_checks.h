// Argument checks of what may lie in pages: key records, and the K/V that fetch and attend read.
// Tables are read back, which waits for the stream: for single stages.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/tensor.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// Positions of each entry of a batch: [begins[i], ends[i]) of sequences[i].
struct Spans {
  std::span<const int32_t> sequences;
  std::span<const int64_t> begins;  // empty: 0 for all
  std::span<const int64_t> ends;

  int64_t begin(std::size_t i) const { return begins.empty() ? 0 : begins[i]; }
};

// That a store (check_store) holds these positions, and has a page for each.
absl::Status check_store_spans(const Stream& stream, const pkv_geometry& geometry,
                               const pkv_store& store, const Spans& spans);
// That no page holds positions of two entries, for those that are written.
absl::Status check_pages_apart(const Stream& stream, const pkv_store& store, const Spans& spans);

// Sets of a codec, one for each of `batch` entries.
absl::Status check_codec_sets(const Stream& stream, const pkv_codec_params& codec, int64_t batch);

inline bool is_paged(const pkv_pages& pages) { return pages.table != nullptr; }
// That there is a page for each of these positions; `view` says shape [.., h, .., width] and dtype.
absl::Status check_token_pages(const Stream& stream, std::string_view name, const pkv_pages& pages,
                               const TensorView& view, const Spans& spans);

}  // namespace pkv
