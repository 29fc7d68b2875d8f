// Faults of a whole step in one call, on the table of cpu, which has one.
#include <utility>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

// The step with attention; a retrieve alone, which takes the same slot, stays sound.
template <auto kSpoil>
pkv_status spoil_step(pkv_backend_device* device, pkv_backend_stream* stream,
                      const pkv_step_args* args, void* scratch) {
  const pkv_status status = fused().step.run(device, stream, args, scratch);
  if (status == PKV_OK && args->attend.output.ndim != 0) kSpoil(*args);
  return status;
}

template <auto kChange>
pkv_status change_step(pkv_backend_device* device, pkv_backend_stream* stream,
                       const pkv_step_args* args, void* scratch) {
  pkv_step_args changed = *args;
  if (args->attend.output.ndim != 0) kChange(changed);
  return fused().step.run(device, stream, &changed, scratch);
}

template <auto kRun>
void replace(pkv_backend& table) {
  const pkv_backend before = table;
  table = fused();
  table.name = before.name;
  table.score = before.score;
  table.step.run = kRun;
}

void swap_hits(const pkv_step_args& a) {
  if (a.rerank.k > 1) std::swap(a.rerank.positions[0], a.rerank.positions[1]);
}
void move_score(const pkv_step_args& a) {
  if (a.rerank.scores != nullptr && a.rerank.counts[0] > 0) a.rerank.scores[0] += 0.25F;
}
void write_source(const pkv_step_args& a) {
  if (a.fetch.source_keys.ndim == 0 || a.fetch.source_keys.data == nullptr) return;
  auto* bytes = static_cast<uint8_t*>(a.fetch.source_keys.data);
  bytes[a.fetch.source_keys.byte_offset] ^= 1;
}
void forget_last_part(pkv_step_args& a) { --a.attend.part_count; }
void forget_source_strides(pkv_step_args& a) {
  forget_strides(a.fetch.source_keys);
  forget_strides(a.fetch.source_values);
}

constexpr Mutant kMutants[] = {
    {"step_swaps_hits", replace<spoil_step<swap_hits>>},
    {"step_moves_score", replace<spoil_step<move_score>>},
    {"step_writes_source", replace<spoil_step<write_source>>},
    {"step_forgets_last_part", replace<change_step<forget_last_part>>},
    {"step_ignores_source_strides", replace<change_step<forget_source_strides>>},
};

}  // namespace

std::span<const Mutant> step_mutants() { return kMutants; }

}  // namespace pkv::mutants
