#include "core/cache/codec_sets.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

int64_t key_numbers(const pkv_geometry& g) { return int64_t{g.kv_heads} * g.head_dim; }
int64_t value_numbers(const pkv_geometry& g) {
  return g.sketch_bits == 0 ? 0 : int64_t{g.kv_heads} * g.value_dim;
}

absl::StatusOr<CodecParams> neutral_params(const pkv_geometry& g) {
  const std::vector<float> center(static_cast<std::size_t>(key_numbers(g)), 0.0F);
  const std::vector<float> balance(center.size(), 1.0F);
  const std::vector<float> value_center(static_cast<std::size_t>(value_numbers(g)), 0.0F);
  return CodecParams::create(g, center, balance, value_center);
}

}  // namespace

int64_t CodecSets::set_bytes(const pkv_geometry& g) {
  return (3 * key_numbers(g) + value_numbers(g)) * int64_t{sizeof(float)};
}

absl::StatusOr<std::unique_ptr<CodecSets>> CodecSets::create(std::shared_ptr<const Device> device,
                                                             const pkv_geometry& geometry,
                                                             const CodecOptions& options) {
  PKV_ASSIGN_OR_RETURN(CodecParams numbers, neutral_params(geometry));
  PKV_ASSIGN_OR_RETURN(std::shared_ptr<const Codec> neutral,
                       Codec::create(device, std::move(numbers), options));
  std::unique_ptr<CodecSets> sets(new CodecSets(std::move(neutral)));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device));
  PKV_RETURN_IF_ERROR(sets->grow(stream, 1));
  sets->free_.pop_back();  // set 0 is never free
  PKV_RETURN_IF_ERROR(sets->upload(stream, 0, sets->neutral_->numbers()));
  return sets;
}

absl::Status CodecSets::grow(const Stream& stream, int32_t capacity) {
  const pkv_geometry& g = geometry();
  Arrays larger;
  const WaitAtEnd copies(stream);
  const auto enlarge = [&](const Buffer& from, int64_t numbers, Buffer& to) -> absl::Status {
    const int64_t bytes = numbers * int64_t{sizeof(float)};
    PKV_ASSIGN_OR_RETURN(to, Buffer::create(stream.device(), PKV_MEMORY_DEVICE, capacity * bytes));
    return stream.copy(to.data(), from.data(), capacity_ * bytes);
  };
  PKV_RETURN_IF_ERROR(enlarge(arrays_.center, key_numbers(g), larger.center));
  PKV_RETURN_IF_ERROR(enlarge(arrays_.balance, key_numbers(g), larger.balance));
  PKV_RETURN_IF_ERROR(enlarge(arrays_.inv_balance, key_numbers(g), larger.inv_balance));
  PKV_RETURN_IF_ERROR(enlarge(arrays_.value_center, value_numbers(g), larger.value_center));
  free_.reserve(static_cast<std::size_t>(capacity));
  PKV_RETURN_IF_ERROR(stream.sync());
  for (int32_t set = capacity; set-- > capacity_;) free_.push_back(set);
  arrays_ = std::move(larger);
  capacity_ = capacity;
  return absl::OkStatus();
}

absl::Status CodecSets::upload(const Stream& stream, int32_t set,
                               const CodecParams& numbers) const {
  const auto put = [&](const Buffer& to, std::span<const float> from) {
    const auto bytes = static_cast<int64_t>(from.size_bytes());
    return stream.copy(to.as<std::byte>() + set * bytes, from.data(), bytes);
  };
  PKV_RETURN_IF_ERROR(put(arrays_.center, numbers.center()));
  PKV_RETURN_IF_ERROR(put(arrays_.balance, numbers.balance()));
  PKV_RETURN_IF_ERROR(put(arrays_.inv_balance, numbers.inv_balance()));
  PKV_RETURN_IF_ERROR(put(arrays_.value_center, numbers.value_center()));
  return stream.sync();
}

absl::StatusOr<std::shared_ptr<CodecSets::Slot>> CodecSets::add(const Stream& stream,
                                                                const CodecParams& numbers,
                                                                bool is_frozen) {
  if (free_.empty() && is_frozen) {
    return absl::FailedPreconditionError(
        str_cat("needs ", capacity_ + 1, " codecs in one layer, has room for ", capacity_,
                ": captured steps read them (pkv_cache_reserve before they are captured)"));
  }
  if (free_.empty()) PKV_RETURN_IF_ERROR(grow(stream, 2 * capacity_));
  const int32_t set = free_.back();
  PKV_RETURN_IF_ERROR(upload(stream, set, numbers));
  free_.pop_back();
  return std::make_shared<Slot>(this, set);
}

absl::Status CodecSets::reserve(const Stream& stream, int32_t sets) {
  return sets <= capacity_ ? absl::OkStatus() : grow(stream, sets);
}

pkv_codec_params CodecSets::params() const {
  pkv_codec_params params = neutral_->params();
  params.center = arrays_.center.as<float>();
  params.balance = arrays_.balance.as<float>();
  params.inv_balance = arrays_.inv_balance.as<float>();
  params.value_center = arrays_.value_center.as<float>();
  return params;
}

}  // namespace pkv
