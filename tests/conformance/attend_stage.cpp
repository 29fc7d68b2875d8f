#include "tests/conformance/attend_stage.h"

#include <algorithm>
#include <limits>

#include "tests/conformance/pages.h"

namespace pkv::conformance {
namespace {

// Rows of `stride` elements, `rest` behind each.
template <class T>
std::vector<T> padded(const Rows<T>& rows, int64_t stride, T rest) {
  std::vector<T> flat(rows.size() * static_cast<size_t>(stride), rest);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), flat.begin() + static_cast<int64_t>(r) * stride);
  }
  return flat;
}

void put_hits(Session& session, const AttendInput& input, pkv_attend_args& args) {
  args.k = input.k;
  if (input.k == 0) return;
  args.row_keys = session.in("row_keys", input.rows->keys);
  if (input.rows->values) args.row_values = session.in("row_values", *input.rows->values);
  args.positions = session.in("positions", padded(input.positions, input.k, -1));
  args.counts = session.in("counts", input.counts);
}

void put_part(Session& session, const AttendInput& input, const PartInput& part, pkv_part& out) {
  if (part.lengths) out.lengths = session.in("part_lengths", *part.lengths);
  if (part.page_tokens == 0) {
    out.keys = session.in("part_keys", part.keys);
    if (part.values) out.values = session.in("part_values", *part.values);
    return;
  }
  const std::vector<int64_t> whole(part.starts.size(), part.keys.shape[2]);
  const PageSpans spans = {input.batch.sequences, part.starts, part.lengths.value_or(whole)};
  out.starts = session.in("part_starts", part.starts);
  out.keys = shape_only(session, part.keys);
  out.key_pages = put_pages(session, "part_keys", gather(part.keys, part.keys.memory), spans,
                            part.page_tokens, PageForm::kHeads);
  if (!part.values) return;
  out.values = shape_only(session, *part.values);
  out.value_pages = put_pages(session, "part_values", gather(*part.values, part.values->memory),
                              spans, part.page_tokens, PageForm::kTokens);
}

void put_tail(Session& session, const Codec& codec, const Zone& zone, const AttendInput& input,
              pkv_attend_args& args) {
  if (input.tail == PKV_TAIL_DROP) return;
  std::vector<int32_t> counts;
  for (const auto& row : input.candidates) counts.push_back(static_cast<int32_t>(row.size()));
  args.candidates = session.in("candidates", padded(input.candidates, input.candidates_stride, -1));
  args.candidates_stride = input.candidates_stride;
  args.candidate_counts = session.in("candidate_counts", counts);
  // What lies behind the counted estimates is an infinity that would take all the weight.
  args.estimates = session.in("estimates", padded(input.estimates, input.candidates_stride,
                                                  std::numeric_limits<float>::infinity()));
  args.rest_lse = session.in("rest_lse", input.rest_lse);
  args.value_sums = session.in("value_sums", zone.value_sums);
  args.good_counts = session.in("good_counts", zone.good_counts);
  if (!reads_samples(input.tail)) return;
  args.tail_samples = input.tail_samples;
  args.sample_estimates =
      session.in("sample_estimates", padded(input.sample_estimates, input.tail_samples, 0.0F));
  args.store = put_store(session, codec, zone, false);
}

}  // namespace

Attention run_attend(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
                     const AttendInput& input) {
  Session session(place, fill);
  pkv_attend_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = input.query_heads;
  args.tail = input.tail;
  args.part_count = static_cast<int32_t>(input.parts.size());
  args.scale = input.scale;
  args.soft_cap = input.soft_cap;
  args.sink_logits = session.in("sink_logits", input.sink_logits);
  args.codec = put_codec(session, codec, input.batch.sequences);
  args.batch = put_batch(session, input.batch);
  args.queries = session.in("queries", input.queries);
  for (size_t p = 0; p < input.parts.size(); ++p) {
    put_part(session, input, input.parts[p], args.parts[p]);
  }
  put_hits(session, input, args);
  put_tail(session, codec, zone, input, args);
  const Shape shape = {input.batch.size(), input.query_heads, codec.dv()};
  const Tensor output = empty_tensor(input.output_dtype, shape, input.output_layout, fill);
  args.output = session.out("output", output);
  const int64_t heads = input.batch.size() * input.query_heads;
  if (input.wants_lse) args.lse = session.out<float>("lse", heads);
  session.finish("pkv_stage_attend_sync",
                 pkv_stage_attend_sync(place.device(), place.stream(), &args));
  return {session.read("output", args.output, output),
          input.wants_lse ? session.read(args.lse, heads) : std::vector<float>()};
}

}  // namespace pkv::conformance
