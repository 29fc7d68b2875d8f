// The codecs in use by the sequences of a layer, side by side as the stages take them:
// pkv_codec_params with [sets, h, ..] arrays. Set 0 is neutral (centre 0, balance 1).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/codec/codec.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

class CodecSets {
 public:
  // Holds a set as long as somebody has it.
  class Slot {
   public:
    Slot(CodecSets* sets, int32_t index) : sets_(sets), index_(index) {}
    ~Slot() { sets_->free_.push_back(index_); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    int32_t index() const { return index_; }

   private:
    CodecSets* sets_;
    int32_t index_;
  };

  static absl::StatusOr<std::unique_ptr<CodecSets>> create(std::shared_ptr<const Device> device,
                                                           const pkv_geometry& geometry,
                                                           const CodecOptions& options);

  // Waits until the numbers are there. Pointers of params() change when the sets grow.
  // `is_frozen`: FAILED_PRECONDITION instead of growing.
  absl::StatusOr<std::shared_ptr<Slot>> add(const Stream& stream, const CodecParams& numbers,
                                            bool is_frozen);
  // So many sets, the neutral one included, without growing.
  absl::Status reserve(const Stream& stream, int32_t sets);
  // set_of is for the caller to set.
  pkv_codec_params params() const;
  const pkv_geometry& geometry() const { return neutral_->geometry(); }

  int64_t used() const { return capacity_ - static_cast<int64_t>(free_.size()); }
  static int64_t set_bytes(const pkv_geometry& geometry);

 private:
  explicit CodecSets(std::shared_ptr<const Codec> neutral) : neutral_(std::move(neutral)) {}
  absl::Status grow(const Stream& stream, int32_t capacity);
  absl::Status upload(const Stream& stream, int32_t set, const CodecParams& numbers) const;

  struct Arrays {
    Buffer center, balance, inv_balance, value_center;
  };
  std::shared_ptr<const Codec> neutral_;
  Arrays arrays_;
  int32_t capacity_ = 0;
  std::vector<int32_t> free_;
};

}  // namespace pkv
