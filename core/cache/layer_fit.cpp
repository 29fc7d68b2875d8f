// Codecs of a layer: fits on the zone's keys. docs/algorithm.md, sections 2.2 and 9.
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/layer.h"

namespace pkv {
namespace {

// A contiguous [heads, n, width].
class Gathered {
 public:
  static absl::StatusOr<Gathered> create(Temporaries& memory, const CacheShape& shape, int64_t n,
                                         int64_t width) {
    Gathered rows;
    rows.shape_ = {shape.geometry.kv_heads, n, width};
    PKV_ASSIGN_OR_RETURN(rows.data_, memory.take(rows.shape_[0] * n * width * shape.element_bytes));
    return rows;
  }
  std::byte* data() const { return data_; }
  pkv_tensor tensor(const CacheShape& shape) const {
    pkv_tensor tensor{};
    tensor.data = data_;
    tensor.device_type = shape.device->info().device_type;
    tensor.device_id = shape.device->info().device_id;
    tensor.ndim = 3;
    tensor.dtype = shape.desc.dtype;
    tensor.shape = shape_.data();
    return tensor;
  }

 private:
  std::byte* data_ = nullptr;
  std::array<int64_t, 3> shape_{};
};

// What a fit takes, about: the rows, records, and votes of some hundred queries.
int64_t expected_bytes(const CacheShape& shape, int64_t length) {
  const pkv_geometry& g = shape.geometry;
  const int64_t row = int64_t{g.head_dim + g.value_dim} * shape.element_bytes;
  return length * g.kv_heads * (row + g.head_dim + 512);
}

}  // namespace

// On the first `length` keys of the zone, gathered into one piece, so that the numbers are those of
// any other fit to the same keys. `queries`: the caller's, or NULL for those that were kept.
absl::StatusOr<CodecParams> Layer::compute_fit(const Stream& stream, const SequenceState& state,
                                               int64_t length, const TensorView* queries,
                                               bool uses_kept) const {
  const pkv_geometry& g = shape_.geometry;
  const bool takes_values = g.sketch_bits != 0 && shape_.value_elements > 0;
  Temporaries memory(stream, expected_bytes(shape_, length));
  PKV_ASSIGN_OR_RETURN(const Gathered keys, Gathered::create(memory, shape_, length, g.head_dim));
  PKV_ASSIGN_OR_RETURN(const Gathered values,
                       Gathered::create(memory, shape_, takes_values ? length : 0, g.value_dim));
  for (int64_t done = 0; done < length;) {
    RowRun from = run_at(state, shape_.desc.sink + done, length - done);
    RowRun to{};
    to.tokens = from.tokens;
    to.keys = keys.data() + done * g.head_dim * shape_.element_bytes;
    to.key_token_stride = g.head_dim;
    to.key_head_stride = length * g.head_dim;
    if (takes_values) {
      to.values = values.data() + done * g.value_dim * shape_.element_bytes;
      to.value_token_stride = g.value_dim;
      to.value_head_stride = length * g.value_dim;
    }
    PKV_RETURN_IF_ERROR(copy_run(stream, from, to));
    done += from.tokens;
  }
  pkv_tensor sample{};
  int64_t sample_shape[3] = {shape_.desc.query_heads, 0, g.head_dim};
  int64_t sample_strides[3] = {g.head_dim, sample_shape[0] * g.head_dim, 1};
  sample.device_type = shape_.device->info().device_type;
  sample.device_id = shape_.device->info().device_id;
  sample.ndim = 3;
  sample.shape = sample_shape;
  sample.strides = sample_strides;
  if (queries != nullptr) {
    sample = queries->tensor();
    sample_shape[1] = queries->extent(0);
    sample_strides[0] = queries->stride(1);
    sample_strides[1] = queries->stride(0);
    sample.shape = sample_shape;
    sample.strides = sample_strides;
  } else if (uses_kept && !state.queries.is_empty()) {
    const int64_t until = tokens_of_zone(shape_.rules, length);
    const int64_t begin = std::max<int64_t>(0, until - shape_.desc.fit_positions);
    sample_shape[1] = state.queries.count(begin, until);
    PKV_ASSIGN_OR_RETURN(sample.data, memory.take(sample_shape[1] * pools_.query_bytes));
    PKV_RETURN_IF_ERROR(
        state.queries.gather(stream, pools_.query_bytes, begin, until, sample.data));
    sample.dtype = pools_.query_type;
  }
  const pkv_tensor key_tensor = keys.tensor(shape_);
  const pkv_tensor value_tensor = values.tensor(shape_);
  return Codec::fit_numbers_sync(stream, memory, shape_.config, key_tensor,
                                 sample_shape[1] > 0 ? &sample : nullptr,
                                 takes_values ? &value_tensor : nullptr);
}

absl::StatusOr<std::shared_ptr<CodecSets::Slot>> Layer::use(const Stream& stream,
                                                            const SequenceState& state, Fit& fit) {
  if (!fit.numbers) {
    PKV_ASSIGN_OR_RETURN(fit.numbers, compute_fit(stream, state, fit.length, nullptr, true));
    ++pools_.fits;
  }
  std::shared_ptr<CodecSets::Slot> slot = fit.slot.lock();
  if (slot == nullptr) {
    PKV_ASSIGN_OR_RETURN(slot, sets_->add(stream, *fit.numbers, pools_.is_frozen));
    fit.slot = slot;
  }
  return slot;
}

absl::Status Layer::import_codec(const Stream& stream, const CodecParams& numbers) {
  PKV_ASSIGN_OR_RETURN(std::shared_ptr<CodecSets::Slot> slot,
                       sets_->add(stream, numbers, pools_.is_frozen));
  imported_ = numbers;
  imported_slot_ = std::move(slot);
  return absl::OkStatus();
}

absl::StatusOr<CodecParams> Layer::codec_of(int32_t sequence) const {
  const SequenceState& state = states_[index(sequence)];
  if (state.encoded == 0) {
    return absl::FailedPreconditionError(
        str_cat("sequence ", sequence, " has no records yet: its zone of ", state.zone,
                " tokens is attended in full below ", first_fit(shape_.rules)));
  }
  return imported_ ? *imported_ : *state.encoded_with->numbers;
}

void Layer::set_fits(int32_t sequence, std::vector<std::shared_ptr<Fit>> fits) {
  states_[index(sequence)].fits = std::move(fits);
}

}  // namespace pkv
