#include "tests/conformance/fetch_stage.h"

namespace pkv::conformance {
namespace {

// Where the rows of `source` go.
std::optional<Tensor> target_of(const std::optional<Tensor>& source, const FetchInput& input,
                                uint8_t fill) {
  if (!source) return std::nullopt;
  const Shape shape = {input.batch.size(), input.heads, input.k, source->shape[3]};
  return empty_tensor(source->dtype, shape, input.target_layout, fill);
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
    args.source_keys = session.in("source_keys", *input.keys);
    args.keys = session.out("keys", *keys);
  }
  if (values) {
    args.source_values = session.in("source_values", *input.values);
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
