#include "tests/conformance/session.h"

#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

constexpr int64_t kGuard = 256;  // bytes; keeps the alignment of device memory

}  // namespace

// Copies what is in `before` to where it belongs.
void Session::put(Block block) {
  const uint8_t* from = block.before.data();
  for (const Piece& piece : block.pieces) {
    place_.copy(block.memory.data() + piece.offset, from, piece.bytes);
    from += piece.bytes;
  }
  blocks_.push_back(std::move(block));
}

uint8_t* Session::add(const char* name, const std::vector<uint8_t>& content, Use use,
                      int64_t alignment, int32_t kind) {
  const auto size = static_cast<int64_t>(content.size());
  const bool is_guarded = fill_ == kFills[1] && can_guard(place_);
  const int64_t back = is_guarded ? (alignment - size % alignment) % alignment : kGuard;
  const int64_t bytes = kGuard + size + back;
  Memory memory = is_guarded ? Memory::before_guard(place_, name, bytes, alignment)
                             : Memory(place_, bytes, kind);
  uint8_t* data = memory.data() + kGuard;
  Block block = {name, use, std::move(memory), data, {{0, bytes}}, kGuard, back, {}, {}};
  block.before.assign(static_cast<size_t>(bytes), fill_);
  std::copy(content.begin(), content.end(), block.before.begin() + kGuard);
  put(std::move(block));
  return data;
}

uint8_t* Session::add_wide(const char* name, const Tensor& tensor, Use use) {
  Memory memory = Memory::sparse(place_, tensor.span);
  uint8_t* data = memory.data();
  Block block = {name, use, std::move(memory), data, {}, 0, 0, tensor.memory, {}};
  for (const int64_t place : tensor.places) {
    block.pieces.push_back({place, tensor.row_bytes() + 2 * kMargin});
  }
  put(std::move(block));
  return data;
}

uint8_t* Session::sparse_records(int64_t bytes) {
  Memory memory = Memory::sparse(place_, bytes);
  uint8_t* data = memory.data();
  put({"store", Use::kOutput, std::move(memory), data, {}, 0, 0, {}, {}});
  return data;
}

pkv_tensor Session::view(const char* name, const Tensor& tensor, Use use, int32_t kind) {
  pkv_tensor view = {};
  view.device_type = kind == PKV_ALLOC_HOST ? place_.host_type() : place_.device_type();
  view.device_id = place_.device_id();
  view.ndim = static_cast<int32_t>(tensor.shape.size());
  view.dtype = tensor.dtype;
  view.shape = tensor.shape.data();
  view.strides = tensor.layout == Layout::kDense ? nullptr : tensor.strides.data();
  if (tensor.memory.empty()) return view;
  uint8_t* data = tensor.places.empty()
                      ? add(name, tensor.memory, use, dtype_bytes(tensor.dtype), kind)
                      : add_wide(name, tensor, use);
  const bool by_offset = tensor.layout == Layout::kOffset;
  view.data = by_offset ? data : data + tensor.origin;
  view.byte_offset = by_offset ? static_cast<uint64_t>(tensor.origin) : 0;
  return view;
}

void Session::settle(const void* data) {
  for (Block& block : blocks_) {
    if (block.data != data || block.pieces.empty()) continue;
    place_.copy(block.before.data() + block.front, block.data,
                static_cast<int64_t>(block.before.size()) - block.front - block.back);
  }
}

void Session::check(Block& block, bool may_write) {
  const auto size = static_cast<int64_t>(block.before.size());
  const int64_t end = size - block.back;
  std::vector<uint8_t> now(block.before.size());
  uint8_t* to = now.data();
  for (const Piece& piece : block.pieces) {
    place_.copy(to, block.memory.data() + piece.offset, piece.bytes);
    to += piece.bytes;
  }
  for (int64_t i = 0; i < size; ++i) {
    const bool is_guard = i < block.front || i >= end;
    if (now[i] == block.before[i] || (!is_guard && may_write)) continue;
    std::string where = fmt::format("byte {} of {}", i - block.front, end - block.front);
    if (i < block.front) where = fmt::format("{} bytes in front of it", block.front - i);
    if (i >= end) where = fmt::format("{} bytes behind its end", i - end);
    throw Failure(fmt::format("{} was written where it may not be, {}: {:#04x} instead of {:#04x}",
                              block.name, where, now[i], block.before[i]));
  }
  block.after.assign(now.begin() + block.front, now.begin() + end);
}

void Session::finish(const char* function, pkv_status status) {
  const std::string text = status == PKV_OK ? "" : error_text(function, status);
  if (status != PKV_OK && status != PKV_UNIMPLEMENTED) throw Failure(text);
  for (Block& block : blocks_) check(block, status == PKV_OK && block.use == Use::kOutput);
  if (status == PKV_UNIMPLEMENTED) throw Skip(text);
}

void Session::check_filled(const char* name, size_t row, const std::vector<uint8_t>& bytes,
                           size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) {
    if (bytes[i] == fill_) continue;
    throw Failure(
        fmt::format("{}: row {} was written {} bytes behind what is in use", name, row, i - begin));
  }
}

const std::vector<uint8_t>& Session::content(const void* data) const {
  for (const Block& block : blocks_) {
    if (block.data == data) return block.after;
  }
  static const std::vector<uint8_t> nothing;
  return nothing;
}

Dense Session::read(const char* name, const pkv_tensor& view, const Tensor& tensor) const {
  if (tensor.memory.empty()) return gather(tensor, {});
  const auto* first = static_cast<const uint8_t*>(view.data) + view.byte_offset;
  const std::vector<uint8_t>& memory = content(first - tensor.origin);
  if (!are_gaps(tensor, memory, fill_)) {
    throw Failure(fmt::format("{} was written between its rows", name));
  }
  return gather(tensor, memory);
}

}  // namespace pkv::conformance
