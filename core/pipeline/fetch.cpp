// fetch: K and V rows at given positions, byte for byte. docs/algorithm.md, section 7.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

// One of K and V: where it comes from and where it goes.
struct Copy {
  TensorView source;  // [sequences, h, n, width]
  TensorView target;  // [b, h, k, width]
};

struct CopyShape {
  int32_t batch;
  int32_t kv_heads;
  int32_t k;
  int64_t sequences;  // that the source must have
};

// None if both are absent. `width` 0: as wide as the source.
absl::StatusOr<std::optional<Copy>> check_copy(const Device& device, std::string_view name,
                                               const pkv_tensor& source, const pkv_tensor& target,
                                               const CopyShape& shape, int64_t width,
                                               Access access = Access::kInput) {
  if (is_present(source) != is_present(target)) {
    return absl::InvalidArgumentError(str_cat(name, ": ndim=", source.ndim, " of the source and ",
                                              target.ndim, " of the rows, accepted: both or none"));
  }
  if (!is_present(source)) return std::optional<Copy>();
  const std::string source_name = str_cat("source ", name);
  const std::string target_name = str_cat("rows ", name);
  const Axis last = width == 0 ? between("width", 1, INT32_MAX) : exactly("width", width);
  PKV_ASSIGN_OR_RETURN(TensorView from,
                       check_tensor(device, source_name, source,
                                    {at_least("sequences", shape.sequences),
                                     exactly("h", shape.kv_heads), at_least("n", 0), last},
                                    kAnyTypes, access));
  const pkv_dtype dtype[] = {from.dtype()};
  PKV_ASSIGN_OR_RETURN(TensorView to,
                       check_tensor(device, target_name, target,
                                    {exactly("b", shape.batch), exactly("h", shape.kv_heads),
                                     exactly("k", shape.k), exactly("width", from.extent(3))},
                                    dtype, Access::kOutput));
  PKV_RETURN_IF_ERROR(check_apart(target_name, to, source_name, from));
  return std::optional<Copy>({from, to});
}

absl::Status check_targets_apart(const std::optional<Copy>& keys,
                                 const std::optional<Copy>& values) {
  if (!keys || !values) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_apart("rows keys", keys->target, "source values", values->source));
  PKV_RETURN_IF_ERROR(check_apart("rows values", values->target, "source keys", keys->source));
  return check_apart("rows keys", keys->target, "rows values", values->target);
}

int64_t source_tokens(const std::optional<Copy>& keys, const std::optional<Copy>& values) {
  int64_t tokens = format::kMaxTokens;
  if (keys) tokens = std::min(tokens, keys->source.extent(2));
  if (values) tokens = std::min(tokens, values->source.extent(2));
  return tokens;
}

// Slots of one entry of the batch: -1, or below the entry's length and within the source.
absl::Status check_positions(std::span<const int32_t> positions, int64_t entry, int32_t k,
                             int64_t limit) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= -1 && positions[i] < limit) continue;
    const auto slots = static_cast<std::size_t>(k);
    return absl::OutOfRangeError(str_cat("positions[entry ", entry, ", KV head ", i / slots,
                                         ", slot ", i % slots, "]=", positions[i], ", accepted: -1",
                                         limit > 0 ? " and 0.." : "",
                                         limit > 0 ? str_cat(limit - 1) : ""));
  }
  return absl::OkStatus();
}

Access access_of(const pkv_pages& pages) {
  return is_paged(pages) ? Access::kElsewhere : Access::kInput;
}

// A page for every key that a position may name.
absl::Status check_source_pages(const Stream& stream, std::string_view name, const pkv_pages& pages,
                                const std::optional<Copy>& copy, const BatchNumbers& batch) {
  if (!is_paged(pages) || !copy) return absl::OkStatus();
  std::vector<int64_t> ends;
  for (const int64_t length : batch.lengths) {
    ends.push_back(std::min(length, copy->source.extent(2)));
  }
  return check_token_pages(stream, str_cat("source ", name), pages, copy->source,
                           {batch.sequences, {}, ends});
}

void set_tensors(pkv_fetch_args& args, const std::optional<Copy>& keys,
                 const std::optional<Copy>& values) {
  if (keys) {
    args.source_keys = keys->source.tensor();
    args.keys = keys->target.tensor();
  }
  if (values) {
    args.source_values = values->source.tensor();
    args.values = values->target.tensor();
  }
}

// With host memory everything can be looked at, with a device's only what the host knows.
absl::Status check_hits(const Plan& plan, const Stream& stream, const int32_t* positions,
                        int64_t tokens) {
  const int32_t k = plan.options().k;
  const int64_t slots = int64_t{plan.geometry().kv_heads} * k;
  const bool is_host = plan.device().info().device_type == PKV_DEVICE_CPU;
  if (is_host) PKV_RETURN_IF_ERROR(stream.sync());
  for (int64_t i = 0; i < plan.batch(); ++i) {
    const int32_t sequence = plan.sequences()[static_cast<std::size_t>(i)];
    const int64_t length = plan.index().length(sequence);
    if (is_host) {
      const std::span entry(positions + i * slots, static_cast<std::size_t>(slots));
      PKV_RETURN_IF_ERROR(check_positions(entry, i, k, std::min(length, tokens)));
    } else if (tokens < length) {
      return absl::OutOfRangeError(str_cat("source holds n=", tokens,
                                           " tokens, accepted: at least ", length,
                                           ", those of sequence ", sequence));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status stage_fetch_sync(const Stream& stream, pkv_fetch_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_range("kv_heads", args.kv_heads, 1, INT32_MAX));
  PKV_RETURN_IF_ERROR(check_range("k", args.k, 0, format::kMaxK));
  PKV_ASSIGN_OR_RETURN(const BatchNumbers batch,
                       check_batch(stream, args.batch, args.kv_heads, Sequences::kRead));
  const CopyShape shape = {args.batch.batch, args.kv_heads, args.k,
                           sequences_up_to_last(batch.sequences)};
  PKV_ASSIGN_OR_RETURN(const auto keys, check_copy(device, "keys", args.source_keys, args.keys,
                                                   shape, 0, access_of(args.key_pages)));
  PKV_ASSIGN_OR_RETURN(const auto values,
                       check_copy(device, "values", args.source_values, args.values, shape, 0,
                                  access_of(args.value_pages)));
  PKV_RETURN_IF_ERROR(check_targets_apart(keys, values));
  PKV_ASSIGN_OR_RETURN(
      const int64_t slots,
      checked_product("positions",
                      {{"batch", args.batch.batch}, {"kv_heads", args.kv_heads}, {"k", args.k}}));
  PKV_RETURN_IF_ERROR(check_pointer("positions", args.positions, slots));
  PKV_ASSIGN_OR_RETURN(const auto positions, read_back(stream, args.positions, slots));
  const auto entry_slots = static_cast<std::size_t>(int64_t{args.kv_heads} * args.k);
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    const int64_t limit = std::min(batch.lengths[i], source_tokens(keys, values));
    const auto entry = std::span(positions).subspan(i * entry_slots, entry_slots);
    PKV_RETURN_IF_ERROR(check_positions(entry, static_cast<int64_t>(i), args.k, limit));
  }
  PKV_RETURN_IF_ERROR(check_source_pages(stream, "keys", args.key_pages, keys, batch));
  PKV_RETURN_IF_ERROR(check_source_pages(stream, "values", args.value_pages, values, batch));
  if (slots == 0 || (!keys && !values)) return absl::OkStatus();
  set_tensors(args, keys, values);
  return run_stage_sync(stream, "fetch", device.backend().fetch, args);
}

absl::Status fetch(const Plan& plan, const Stream& stream, const pkv_rows& source,
                   const pkv_hits& hits, const pkv_rows& rows) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  const Device& device = plan.device();
  const pkv_geometry& g = plan.geometry();
  const int32_t k = plan.options().k;
  const CopyShape shape = {plan.batch(), g.kv_heads, k, sequences_up_to_last(plan.sequences())};
  PKV_ASSIGN_OR_RETURN(const auto keys,
                       check_copy(device, "keys", source.keys, rows.keys, shape, g.head_dim));
  if (g.v_source == PKV_V_SOURCE_NONE && is_present(source.values)) {
    return absl::InvalidArgumentError("source values are given, accepted: none (v_source=none)");
  }
  PKV_ASSIGN_OR_RETURN(const auto values, check_copy(device, "values", source.values, rows.values,
                                                     shape, g.value_dim));
  PKV_RETURN_IF_ERROR(check_targets_apart(keys, values));
  const int64_t slots = int64_t{plan.batch()} * g.kv_heads * k;
  PKV_RETURN_IF_ERROR(check_pointer("hits.positions", hits.positions, slots));
  if (slots == 0 || (!keys && !values)) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_hits(plan, stream, hits.positions, source_tokens(keys, values)));

  pkv_fetch_args args = plan.fetch_args();
  args.batch.lengths = plan.length_bounds();
  args.positions = hits.positions;
  set_tensors(args, keys, values);
  PKV_ASSIGN_OR_RETURN(const int64_t scratch_bytes,
                       stage_scratch_bytes(device, "fetch", device.backend().fetch, args));
  if (scratch_bytes > 0) {
    return absl::UnimplementedError(
        str_cat("fetch: the backend asks for ", scratch_bytes, " bytes of scratch, accepted: 0"));
  }
  return device.call("fetch", device.backend().fetch.run, stream.handle(), &args, nullptr);
}

}  // namespace pkv
