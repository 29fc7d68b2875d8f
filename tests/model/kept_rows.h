// Rows of tokens that have been made once, for tests that ask for the same ones again and again.
// Not for several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace pkv::cache_model {

class KeptRows {
 public:
  // What make(first byte) writes for this token of this layer, `bytes` long, the same at every
  // call. Stays until the next call.
  template <class Make>
  const std::byte* get(uint64_t token, int32_t layer, std::size_t bytes, Make make) {
    const auto at = static_cast<std::size_t>(layer);
    if (layers_.size() <= at) layers_.resize(at + 1);
    auto found = layers_[at].find(token);
    if (found == layers_[at].end()) {
      if (held_ + bytes > kMost) forget();
      found = layers_[at].emplace(token, bytes).first;
      make(found->second.data());
      held_ += bytes;
    }
    return found->second.data();
  }

 private:
  static constexpr std::size_t kMost = std::size_t{512} << 20;
  void forget() {
    for (auto& layer : layers_) layer.clear();
    held_ = 0;
  }

  std::vector<std::unordered_map<uint64_t, std::vector<std::byte>>> layers_;
  std::size_t held_ = 0;
};

}  // namespace pkv::cache_model
