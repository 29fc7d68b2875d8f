#include "tests/conformance/encode_stage.h"

#include <algorithm>

namespace pkv::conformance {
namespace {

// Records that row r has after the call.
std::vector<int64_t> tokens_after(const Codec& codec, const EncodeInput& input) {
  std::vector<int64_t> tokens;
  for (const Records& row : input.before.rows) tokens.push_back(row.tokens);
  for (size_t i = 0; i < input.sequences.size(); ++i) {
    for (int32_t head = 0; head < codec.heads(); ++head) {
      const auto row = static_cast<size_t>(input.sequences[i]) * codec.heads() + head;
      tokens[row] = std::max(tokens[row], input.starts[i] + input.counts[i]);
    }
  }
  return tokens;
}

}  // namespace

EncodeInput encode_input(const World& world) {
  EncodeInput input;
  input.keys = world.key_tensor();
  input.values = world.value_tensor();
  input.before = empty_zone(world.codec(), world.sequences(), world.setup().n + world.setup().room,
                            input.values.has_value());
  input.before.page = world.setup().page;
  input.sequences = world.indexed().sequences;
  input.starts.assign(input.sequences.size(), 0);
  input.counts = world.indexed().lengths;
  return input;
}

Encoded run_encode(const Place& place, uint8_t fill, const Codec& codec, const EncodeInput& input) {
  Session session(place, fill);
  const auto rows = static_cast<int64_t>(input.sequences.size()) * codec.heads();
  pkv_encode_args args = {};
  args.struct_size = sizeof args;
  args.batch = static_cast<int32_t>(input.sequences.size());
  args.codec = put_codec(session, codec, input.sequences);
  args.keys = session.in("keys", input.keys);
  if (input.values) args.values = session.in("values", *input.values);
  args.sequences = session.in("sequences", input.sequences);
  args.starts = session.in("starts", input.starts);
  args.counts = session.in("counts", input.counts);
  args.store = put_store(session, codec, input.before, /*may_change=*/true);
  args.occupancy = session.in_out("occupancy", input.before.occupancy);
  args.value_sums = session.in_out("value_sums", input.before.value_sums);
  args.good_counts = session.in_out("good_counts", input.before.good_counts);
  args.first_bad = input.wants_first_bad ? session.out<int64_t>("first_bad", rows) : nullptr;
  session.finish("pkv_stage_encode_sync",
                 pkv_stage_encode_sync(place.device(), place.stream(), &args));

  Encoded result;
  result.zone.capacity = input.before.capacity;
  result.zone.page = input.before.page;
  const std::vector<int64_t> tokens = tokens_after(codec, input);
  for (size_t row = 0; row < tokens.size(); ++row) {
    result.zone.rows.push_back(
        export_records(place, fill, codec, args.store, static_cast<int64_t>(row), 0, tokens[row]));
  }
  const auto size = [](const auto& values) { return static_cast<int64_t>(values.size()); };
  result.zone.occupancy = session.read(args.occupancy, size(input.before.occupancy));
  result.zone.value_sums = session.read(args.value_sums, size(input.before.value_sums));
  result.zone.good_counts = session.read(args.good_counts, size(input.before.good_counts));
  if (input.wants_first_bad) result.first_bad = session.read(args.first_bad, rows);
  return result;
}

}  // namespace pkv::conformance
