// One stage by itself: supports, scratch, run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"
#include "core/runtime/temporaries.h"

namespace pkv {

// Bytes of scratch, at least 0, once the backend says that it can do it.
template <class Slots, class Args>
absl::StatusOr<int64_t> stage_scratch_bytes(const Device& device, std::string_view what,
                                            const Slots& slots, const Args& args) {
  PKV_RETURN_IF_ERROR(device.call(what, slots.supports, &args));
  int64_t bytes = 0;
  PKV_RETURN_IF_ERROR(device.call(what, slots.scratch_bytes, &args, &bytes));
  if (bytes < 0) return absl::InternalError(str_cat(what, ": scratch_bytes=", bytes));
  return bytes;
}

// For arguments that bring dense parts, which a plan had to guess: their scratch fits what it
// booked. RESOURCE_EXHAUSTED else.
template <class Slots, class Args>
absl::Status check_parts_fit(const Device& device, std::string_view what, const Slots& slots,
                             const Args& args, int64_t booked, int64_t max_tokens) {
  PKV_ASSIGN_OR_RETURN(const int64_t needed, stage_scratch_bytes(device, what, slots, args));
  if (needed <= booked) return absl::OkStatus();
  return absl::ResourceExhaustedError(str_cat("dense parts too long: ", what, " needs ", needed,
                                              " bytes of scratch, the plan has ", booked,
                                              "; accepted: parts of max_tokens=", max_tokens));
}

// Scratch of a stage with a guard behind it: shows that a backend uses more than it asked for.
class GuardedScratch {
 public:
  static absl::StatusOr<GuardedScratch> create(const Stream& stream, int64_t bytes);
  void* data() const { return buffer_.data(); }
  // INTERNAL if the guard was written. Waits.
  absl::Status check(const Stream& stream, std::string_view what) const;

 private:
  GuardedScratch(Buffer buffer, int64_t bytes) : buffer_(std::move(buffer)), bytes_(bytes) {}

  Buffer buffer_;  // null for no bytes: then there is no guard either
  int64_t bytes_;
};

// `args` have been checked.
template <class Slots, class Args>
absl::Status run_stage_sync(const Stream& stream, std::string_view what, const Slots& slots,
                            const Args& args) {
  const Device& device = *stream.device();
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, stage_scratch_bytes(device, what, slots, args));
  PKV_ASSIGN_OR_RETURN(const GuardedScratch scratch, GuardedScratch::create(stream, bytes));
  const absl::Status run = device.call(what, slots.run, stream.handle(), &args, scratch.data());
  // Also after a failure: what was enqueued until then may use the scratch.
  const absl::Status passed = scratch.check(stream, what);
  return run.ok() ? passed : run;
}

// The same with arguments that this library made, which need no check, and scratch that has no
// guard: enqueued, not awaited.
template <class Slots, class Args>
absl::Status enqueue_stage(const Stream& stream, Temporaries& memory, std::string_view what,
                           const Slots& slots, const Args& args) {
  const Device& device = *stream.device();
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, stage_scratch_bytes(device, what, slots, args));
  PKV_ASSIGN_OR_RETURN(std::byte* const scratch, memory.lend(bytes));
  return device.call(what, slots.run, stream.handle(), &args, scratch);
}

}  // namespace pkv
