#include "core/cache/words.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace pkv {

// Of several values for one place the last one counts.
void Words::drop_repeated() {
  order_.resize(targets_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) {
    return targets_[a] != targets_[b] ? std::less<>()(targets_[a], targets_[b]) : a < b;
  };
  if (!std::is_sorted(order_.begin(), order_.end(), before)) {
    std::sort(order_.begin(), order_.end(), before);
  }
  sorted_targets_.clear();
  sorted_values_.clear();
  for (const std::size_t i : order_) {
    if (!sorted_targets_.empty() && sorted_targets_.back() == targets_[i]) {
      sorted_values_.back() = values_[i];
      continue;
    }
    sorted_targets_.push_back(targets_[i]);
    sorted_values_.push_back(values_[i]);
  }
}

void Words::make_room(std::size_t more) {
  const std::size_t all = targets_.size() + more;
  if (all <= sorted_values_.capacity()) return;
  const std::size_t room = 2 * all;
  targets_.reserve(room);
  values_.reserve(room);
  order_.reserve(room);
  sorted_targets_.reserve(room);
  sorted_values_.reserve(room);
}

absl::Status Words::flush(const Stream& stream) {
  if (targets_.empty()) return absl::OkStatus();
  drop_repeated();
  const Device& device = *stream.device();
  const absl::Status status = device.call("words", device.backend().memory_words, stream.handle(),
                                          static_cast<int32_t>(sorted_targets_.size()),
                                          sorted_targets_.data(), sorted_values_.data());
  if (!status.ok()) {  // the next flush writes them, which is all that the device lacks then
    targets_.assign(sorted_targets_.begin(), sorted_targets_.end());
    values_.assign(sorted_values_.begin(), sorted_values_.end());
    return status;
  }
  targets_.clear();
  values_.clear();
  return status;
}

}  // namespace pkv
