// step: retrieve, fetch and attend in one call of the caller. docs/algorithm.md, sections 4 to 8.
#include "core/pipeline/step.h"

#include <algorithm>
#include <optional>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/index/row_cache.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/dense_attention.h"
#include "core/pipeline/run_stage.h"

namespace pkv {
namespace {

// K and V of the zone, [sequences, h, n, d]: every sequence of the plan, as long as its index.
absl::Status check_source(const Plan& plan, const pkv_rows& source, KeysValues& out) {
  PKV_RETURN_IF_ERROR(
      check_keys_values(plan.device(), "source", source.keys, source.values,
                        at_least("sequences", sequences_up_to_last(plan.sequences())),
                        plan.geometry(), at_least("n", 0), out));
  for (const int32_t sequence : plan.sequences()) {
    const int64_t length = plan.index().length(sequence);
    if (out.tokens() >= length) continue;
    return absl::OutOfRangeError(str_cat("source holds n=", out.tokens(),
                                         " tokens, accepted: at least ", length,
                                         ", those of sequence ", sequence));
  }
  return absl::OkStatus();
}

absl::Status run_fused(const Plan& plan, const Stream& stream, DenseAttention& dense,
                       const pkv_tensor& query, KeysValues& source, RowCache* rows,
                       const pkv_hits& out, void* memory) {
  const Device& device = plan.device();
  const pkv_step_slots& slots = device.backend().step;
  const ScratchLedger& ledger = plan.step_scratch();
  PKV_ASSIGN_OR_RETURN(const int64_t* lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  pkv_step_args args = fused_args(plan, query, lengths, out);
  args.attend = dense.args;
  read_hits(out, args.attend);
  args.fetch.positions = out.positions;
  args.attend.batch.lengths = args.fetch.batch.lengths = lengths;
  if (source.keys) {
    args.fetch.source_keys = source.keys->tensor();
    args.fetch.source_values = source.values_tensor(plan.geometry().value_dim);
  }
  if (rows != nullptr) {
    PKV_ASSIGN_OR_RETURN(args.row_cache, rows->args(stream, plan.sequences()));
  }
  PKV_RETURN_IF_ERROR(
      check_parts_fit(device, "step", slots, args, ledger.bytes(Piece::kStage), plan.max_tokens()));
  PKV_RETURN_IF_ERROR(
      dense.copy_lengths(plan, stream, ledger.get<int64_t>(memory, Piece::kPartLengths)));
  for (int32_t i = 0; i < args.attend.part_count; ++i) {
    args.attend.parts[i].lengths = dense.args.parts[i].lengths;
  }
  return device.call("step", slots.run, stream.handle(), &args,
                     ledger.get<void>(memory, Piece::kStage));
}

absl::Status check_row_cache(const Plan& plan, const KeysValues& source, const RowCache& rows) {
  if (&rows.index() != &plan.index()) {
    return absl::InvalidArgumentError(
        "row_cache is of another index, accepted: one of the plan's index");
  }
  if (!source.keys || source.keys->dtype() == rows.dtype()) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("row_cache has dtype ", dtype_name(rows.dtype()),
                                            ", accepted: that of source, ",
                                            dtype_name(source.keys->dtype())));
}

// A contiguous [b, h, k, width] in scratch.
struct RowsView {
  int64_t shape[4];
  pkv_tensor tensor;
};
void set_rows(const Plan& plan, const TensorView& source, void* data, RowsView& out) {
  const int64_t shape[] = {plan.batch(), plan.geometry().kv_heads, plan.options().k,
                           source.extent(3)};
  std::copy_n(shape, 4, out.shape);
  out.tensor = source.tensor();
  out.tensor.data = data;
  out.tensor.device_type = plan.device().info().device_type;
  out.tensor.device_id = plan.device().info().device_id;
  out.tensor.byte_offset = 0;
  out.tensor.shape = out.shape;
  out.tensor.strides = nullptr;
}

absl::Status run_parts(const Plan& plan, const Stream& stream, const pkv_step& step,
                       const KeysValues& source, const pkv_hits& out, void* memory) {
  PKV_RETURN_IF_ERROR(retrieve_in(plan, stream, step.query, out, memory));
  pkv_attention attention{};
  attention.struct_size = sizeof attention;
  attention.dense_count = step.dense_count;
  attention.query = step.query;
  std::copy_n(step.dense, PKV_ATTENTION_PARTS, attention.dense);
  attention.output = step.output;
  attention.lse = step.lse;
  attention.sink_logits = step.sink_logits;
  RowsView keys;
  RowsView values;
  if (source.keys) {
    void* room = plan.step_memory(memory);
    const ScratchLedger& ledger = plan.step_scratch();
    set_rows(plan, *source.keys, ledger.get<void>(room, Piece::kRowKeys), keys);
    attention.rows.keys = keys.tensor;
    if (source.values) {
      set_rows(plan, *source.values, ledger.get<void>(room, Piece::kRowValues), values);
      attention.rows.values = values.tensor;
    }
    PKV_RETURN_IF_ERROR(fetch(plan, stream, step.source, out, attention.rows));
  }
  return attend_in(plan, stream, attention, &out, memory);
}

}  // namespace

absl::Status step(const Plan& plan, const Stream& stream, const pkv_step& step, RowCache* rows,
                  const pkv_hits& hits) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_RETURN_IF_ERROR(check_range("hits.flags", hits.flags, 0, 0));
  DenseAttention dense;
  PKV_RETURN_IF_ERROR(dense.check(plan, step));
  if (plan.options().tail != PKV_TAIL_DROP) PKV_RETURN_IF_ERROR(check_tail_values(plan));
  PKV_RETURN_IF_ERROR(plan.check_lengths());
  KeysValues source;
  if (plan.options().k > 0) {
    PKV_RETURN_IF_ERROR(check_source(plan, step.source, source));
    PKV_RETURN_IF_ERROR(dense.check_apart("source", source));
  } else if (is_present(step.source.keys) || is_present(step.source.values)) {
    return absl::InvalidArgumentError("source is given, accepted: none with k=0");
  }
  if (rows != nullptr) PKV_RETURN_IF_ERROR(check_row_cache(plan, source, *rows));
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(step.scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  if (plan.batch() == 0) return absl::OkStatus();
  const pkv_hits out = with_scratch(plan.step_scratch(), plan.step_memory(memory), hits);
  if (!plan.is_fused()) return run_parts(plan, stream, step, source, out, memory);
  return run_fused(plan, stream, dense, dense.args.queries, source, rows, out, memory);
}

}  // namespace pkv
