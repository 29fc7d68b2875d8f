#include "core/pipeline/dense_attention.h"

#include <cstddef>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

absl::Status check_dense_lengths(const Plan& plan, const pkv_dense& dense, int64_t part,
                                 int64_t tokens) {
  if (dense.lengths == nullptr) return absl::OkStatus();
  for (int64_t i = 0; i < plan.batch(); ++i) {
    PKV_RETURN_IF_ERROR(check_part_length(part, i, dense.lengths[i], tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_tail_values(const Plan& plan) {
  for (const int32_t sequence : plan.sequences()) {
    if (plan.index().length(sequence) == 0 || plan.index().has_values(sequence)) continue;
    return absl::FailedPreconditionError(
        str_cat("tail: sequence ", sequence,
                " has tokens that were appended without values, accepted: values for all, or "
                "tail=drop"));
  }
  return absl::OkStatus();
}

absl::Status DenseAttention::check_count(int32_t dense_count) {
  return check_range("dense_count", dense_count, 0, PKV_ATTENTION_PARTS);
}

absl::Status DenseAttention::check(const Plan& plan, const pkv_tensor& query,
                                   const pkv_tensor& output, std::span<const pkv_dense> dense) {
  const Device& device = plan.device();
  const pkv_geometry& g = plan.geometry();
  PKV_RETURN_IF_ERROR(check_has_values(g));
  PKV_ASSIGN_OR_RETURN(
      tensors_, check_query_output(device, query, output, plan.batch(), plan.query_heads(), g));
  args.queries = tensors_->query.tensor();
  args.output = tensors_->output.tensor();
  for (std::size_t i = 0; i < dense.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    KeysValues& rows = parts_[i];
    PKV_RETURN_IF_ERROR(check_keys_values(device, part_name(number), dense[i].rows.keys,
                                          dense[i].rows.values, exactly("b", plan.batch()), g,
                                          at_least("t", 0), rows));
    PKV_RETURN_IF_ERROR(check_dense_lengths(plan, dense[i], number, rows.tokens()));
    PKV_RETURN_IF_ERROR(check_apart(part_name(number), rows));
    if (rows.tokens() == 0) continue;
    pkv_part& part = args.parts[args.part_count++];
    part.keys = rows.keys->tensor();
    part.values = rows.values_tensor(g.value_dim);
    part.lengths = dense[i].lengths;
  }
  return absl::OkStatus();
}

absl::Status DenseAttention::copy_lengths(const Plan& plan, const Stream& stream, int64_t* room) {
  for (int32_t i = 0; i < args.part_count; ++i) {
    const int64_t*& lengths = args.parts[i].lengths;
    if (lengths == nullptr) continue;
    int64_t* target = room + int64_t{i} * plan.batch();
    PKV_RETURN_IF_ERROR(stream.copy(target, lengths, plan.batch() * int64_t{sizeof(int64_t)}));
    lengths = target;
  }
  return absl::OkStatus();
}

}  // namespace pkv
