// What a device can do, asked of its backend's `supports` slots.
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/device.h"

namespace pkv {

// Each list holds what the stages encode, vote, rerank and attend accept all together, one property
// varied at a time about the default profile: head_dim 128, or the first that is accepted.
struct Capabilities {
  struct Layout {
    const char* codec;
    const char* vote;
    int32_t head_dim;
    int64_t record_bytes;  // per token and KV head, canonical
    int64_t row_bytes;     // of a store row of kLayoutTokens tokens
  };
  static constexpr int64_t kLayoutTokens = 1024;

  std::vector<int32_t> head_dims;
  std::vector<const char*> dtypes;
  std::vector<const char*> codecs;
  std::vector<const char*> votes;
  std::vector<const char*> tails;
  std::vector<Layout> layouts;  // of the codecs
};
Capabilities ask_capabilities(const Device& device);

}  // namespace pkv
