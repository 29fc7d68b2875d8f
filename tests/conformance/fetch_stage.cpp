#include "tests/conformance/fetch_stage.h"

#include "tests/conformance/pages.h"

namespace pkv::conformance {
namespace {

// Where the rows of `source` go.
std::optional<Tensor> target_of(const std::optional<Tensor>& source, const FetchInput& input,
                                uint8_t fill) {
  if (!source) return std::nullopt;
  const Shape shape = {input.batch.size(), input.heads, input.k, source->shape[3]};
  return empty_tensor(source->dtype, shape, input.target_layout, fill);
}

// In one piece, or in pages that hold each entry's keys up to its length.
void put_source(Session& session, const char* name, const Tensor& source, const FetchInput& input,
                PageForm form, pkv_tensor& tensor, pkv_pages& pages) {
  if (input.page_tokens == 0) {
    tensor = session.in(name, source);
    return;
  }
  const PageSpans spans = {input.batch.sequences,
                           std::vector<int64_t>(input.batch.sequences.size(), 0),
                           input.batch.lengths};
  const Dense rows = take(gather(source, source.memory), input.batch.sequences);
  pages = put_pages(session, name, rows, spans, input.page_tokens, form);
  tensor = shape_only(session, source);
}

}  // namespace

Fetched run_fetch(const Place& place, uint8_t fill, const FetchInput& input) {
  Session session(place, fill);
  const std::optional<Tensor> keys = target_of(input.keys, input, fill);
  const std::optional<Tensor> values = target_of(input.values, input, fill);
  pkv_fetch_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = input.heads;
  args.batch = put_batch(session, input.batch);
  args.positions = session.in("positions", input.positions);
  args.k = input.k;
  if (keys) {
    put_source(session, "source_keys", *input.keys, input, PageForm::kHeads, args.source_keys,
               args.key_pages);
    args.keys = session.out("keys", *keys);
  }
  if (values) {
    put_source(session, "source_values", *input.values, input, PageForm::kTokens,
               args.source_values, args.value_pages);
    args.values = session.out("values", *values);
  }
  session.finish("pkv_stage_fetch_sync",
                 pkv_stage_fetch_sync(place.device(), place.stream(), &args));
  Fetched fetched;
  if (keys) fetched.keys = session.read("keys", args.keys, *keys);
  if (values) fetched.values = session.read("values", args.values, *values);
  return fetched;
}

}  // namespace pkv::conformance
