#include "core/index/host_stage.h"

#include <algorithm>
#include <cstddef>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"

namespace pkv {
namespace {

constexpr int64_t kLeastTokens = 256;  // fewer are read in place

// Runs of memory that hold what is wanted, `bytes` each, `stride` apart: one per KV head, or one
// in all.
struct Runs {
  const std::byte* first;
  int64_t count;
  int64_t stride;
  int64_t bytes;
};

}  // namespace

TokenChunk::TokenChunk(const TensorView& view, int64_t begin, int64_t count)
    : tensor_(view.tensor()),
      shape_{1, view.extent(0), count, view.extent(2)},
      strides_{0, view.stride(0), view.stride(1), 1} {
  tensor_.data = static_cast<std::byte*>(view.origin()) +
                 view.element_offset(0, begin, 0) * view.element_bytes();
  tensor_.byte_offset = 0;
  tensor_.ndim = 4;
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
}

int64_t TokenChunk::element_bytes() const { return dtype_bytes(tensor_.dtype); }

absl::Status HostStage::take(const Stream& stream, TokenChunk& keys, TokenChunk* values) {
  const auto& device = stream.device();
  const int64_t tokens = keys.shape_[2];
  const auto is_host = [&device](const TokenChunk& chunk) {
    return chunk.tensor_.device_type != device->info().device_type;
  };
  if (tokens < kLeastTokens || !is_host(keys)) return absl::OkStatus();

  const auto runs_of = [tokens](const TokenChunk& chunk, int64_t width) {
    const int64_t bytes = (tokens - 1) * chunk.token_stride_bytes() + width;
    Runs runs{static_cast<const std::byte*>(chunk.tensor_.data), chunk.shape_[1],
              chunk.head_stride_bytes(), bytes};
    if (runs.count > 1 && runs.stride < bytes) {  // the heads of a token are neighbours
      runs.bytes += (runs.count - 1) * runs.stride;
      runs.count = 1;
    }
    return runs;
  };
  const auto ascends = [](const TokenChunk& chunk) {
    return chunk.token_stride_bytes() >= chunk.vector_bytes() && chunk.head_stride_bytes() >= 0;
  };
  if (!ascends(keys) || (values != nullptr && (!ascends(*values) || !is_host(*values)))) {
    return absl::OkStatus();
  }
  // V beside K, or within it, comes along.
  int64_t width = keys.vector_bytes();
  std::ptrdiff_t beside = -1;
  if (values != nullptr && values->head_stride_bytes() == keys.head_stride_bytes() &&
      values->token_stride_bytes() == keys.token_stride_bytes()) {
    const auto key = reinterpret_cast<uintptr_t>(keys.tensor_.data);
    const auto value = reinterpret_cast<uintptr_t>(values->tensor_.data);
    const auto distance = static_cast<int64_t>(value - key);
    if (distance >= 0 && distance + values->vector_bytes() <= keys.token_stride_bytes()) {
      beside = distance;
      width = std::max(width, distance + values->vector_bytes());
    }
  }
  std::array<std::optional<Runs>, 2> sides{runs_of(keys, width), std::nullopt};
  if (values != nullptr && beside < 0) sides[1] = runs_of(*values, values->vector_bytes());
  int64_t moved = 0;
  for (const auto& side : sides) {
    if (side) moved += side->count * padded(side->bytes);
  }
  const int64_t vectors = tokens * keys.shape_[1];
  const int64_t wanted =
      vectors * (keys.vector_bytes() + (values != nullptr ? values->vector_bytes() : 0));
  if (moved > wanted + wanted / 4 + 2 * keys.shape_[1] * kAlignment) return absl::OkStatus();

  if (room_.bytes() < moved) {
    PKV_RETURN_IF_ERROR(stream.sync());  // the room that goes may be in use
    room_ = Buffer();
    PKV_ASSIGN_OR_RETURN(room_, Buffer::create(device, PKV_MEMORY_DEVICE, moved));
  }
  auto* room = room_.as<std::byte>();
  const auto place = [&](TokenChunk& chunk, std::byte* at, const Runs& runs) {
    chunk.tensor_.data = at;
    chunk.tensor_.device_type = device->info().device_type;
    chunk.tensor_.device_id = device->info().device_id;
    if (runs.count > 1) chunk.strides_[1] = padded(runs.bytes) / chunk.element_bytes();
  };
  std::array<TokenChunk*, 2> chunks{&keys, values};
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (!sides[i]) continue;
    const Runs& runs = *sides[i];
    for (int64_t run = 0; run < runs.count; ++run) {
      PKV_RETURN_IF_ERROR(
          stream.copy(room + run * padded(runs.bytes), runs.first + run * runs.stride, runs.bytes));
    }
    place(*chunks[i], room, runs);
    if (i == 0 && beside >= 0) place(*values, room + beside, runs);
    room += runs.count * padded(runs.bytes);
  }
  return absl::OkStatus();
}

}  // namespace pkv
