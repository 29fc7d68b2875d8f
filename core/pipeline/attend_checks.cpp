#include "core/pipeline/attend_checks.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"

namespace pkv {

absl::Status check_keys_values(const Device& device, const std::string& name,
                               const pkv_tensor& keys, const pkv_tensor& values,
                               const Axis& entries, const pkv_geometry& g, const Axis& tokens,
                               KeysValues& out, Access access) {
  PKV_ASSIGN_OR_RETURN(
      out.keys, check_tensor(device, str_cat(name, ".keys"), keys,
                             {entries, exactly("h", g.kv_heads), tokens, exactly("d", g.head_dim)},
                             kFloatTypes, access));
  if (!is_present(values) && g.v_source == PKV_V_SOURCE_K_PREFIX) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(out.values,
                       check_tensor(device, str_cat(name, ".values"), values,
                                    {entries, exactly("h", g.kv_heads), exactly("t", out.tokens()),
                                     exactly("dv", g.value_dim)},
                                    kFloatTypes, access));
  return absl::OkStatus();
}

absl::StatusOr<QueryOutput> check_query_output(const Device& device, const pkv_tensor& query,
                                               const pkv_tensor& output, int32_t batch,
                                               int32_t query_heads, const pkv_geometry& g) {
  PKV_ASSIGN_OR_RETURN(TensorView in, check_tensor(device, "query", query,
                                                   {exactly("b", batch), exactly("hq", query_heads),
                                                    exactly("d", g.head_dim)},
                                                   kFloatTypes));
  PKV_ASSIGN_OR_RETURN(
      TensorView out,
      check_tensor(device, "output", output,
                   {exactly("b", batch), exactly("hq", query_heads), exactly("dv", g.value_dim)},
                   kFloatTypes, Access::kOutput));
  PKV_RETURN_IF_ERROR(check_apart("output", out, "query", in));
  return QueryOutput{in, out};
}

absl::Status check_output_apart(const TensorView& output, const std::string& name,
                                const KeysValues& rows) {
  PKV_RETURN_IF_ERROR(check_apart("output", output, str_cat(name, ".keys"), *rows.keys));
  if (!rows.values) return absl::OkStatus();
  return check_apart("output", output, str_cat(name, ".values"), *rows.values);
}

std::string part_name(int64_t part) { return str_cat("dense[", part, "]"); }

absl::Status check_part_length(int64_t part, int64_t entry, int64_t length, int64_t tokens) {
  if (length >= 0 && length <= tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(part_name(part), ".lengths[", entry, "]=", length, ", accepted: 0..", tokens));
}

absl::Status check_has_values(const pkv_geometry& g) {
  if (g.v_source != PKV_V_SOURCE_NONE) return absl::OkStatus();
  return absl::InvalidArgumentError("v_source=none has no values to attend to, accepted: retrieve");
}

bool reads_samples(const pkv_attend_args& a) {
  return a.tail == PKV_TAIL_SKETCH || a.tail == PKV_TAIL_SAMPLED;
}

absl::Status check_attend_hits(const pkv_attend_args& a) {
  const int64_t rows = int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
  const int64_t heads = int64_t{a.batch.batch} * a.query_heads;
  PKV_RETURN_IF_ERROR(check_pointer("positions", a.positions, rows * a.k));
  PKV_RETURN_IF_ERROR(check_pointer("counts", a.counts, a.k == 0 ? 0 : rows));
  if (a.tail == PKV_TAIL_DROP) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(
      const int64_t candidates,
      checked_product("candidates", {{"rows", rows}, {"candidates", a.candidates_stride}}));
  PKV_ASSIGN_OR_RETURN(
      const int64_t estimates,
      checked_product("estimates", {{"heads", heads}, {"candidates", a.candidates_stride}}));
  PKV_RETURN_IF_ERROR(check_pointer("candidates", a.candidates, candidates));
  PKV_RETURN_IF_ERROR(check_pointer("candidate_counts", a.candidate_counts, rows));
  PKV_RETURN_IF_ERROR(check_pointer("estimates", a.estimates, estimates));
  PKV_RETURN_IF_ERROR(check_pointer("rest_lse", a.rest_lse, heads));
  if (!reads_samples(a)) return absl::OkStatus();
  return check_pointer("sample_estimates", a.sample_estimates, heads);
}

}  // namespace pkv
