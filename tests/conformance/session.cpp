#include "tests/conformance/session.h"

#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/failure.h"

namespace pkv::conformance {
namespace {

constexpr int64_t kGuard = 256;  // bytes; keeps the alignment of device memory

}  // namespace

Session::~Session() {
  for (const Block& block : blocks_) place_.release(block.memory);
}

uint8_t* Session::add(const char* name, const std::vector<uint8_t>& content, Use use) {
  Block block = {name, use, nullptr, nullptr, {}, {}};
  const auto size = static_cast<int64_t>(content.size());
  block.before.assign(static_cast<size_t>(size + 2 * kGuard), fill_);
  std::copy(content.begin(), content.end(), block.before.begin() + kGuard);
  block.memory = place_.allocate(size + 2 * kGuard);
  block.data = block.memory + kGuard;
  blocks_.push_back(std::move(block));
  const Block& kept = blocks_.back();
  place_.copy(kept.memory, kept.before.data(), size + 2 * kGuard);
  return kept.data;
}

pkv_tensor Session::view(const char* name, const Tensor& tensor, Use use) {
  pkv_tensor view = {};
  view.device_type = place_.device_type();
  view.device_id = place_.device_id();
  view.ndim = static_cast<int32_t>(tensor.shape.size());
  view.dtype = tensor.dtype;
  view.shape = tensor.shape.data();
  view.strides = tensor.layout == Layout::kDense ? nullptr : tensor.strides.data();
  if (tensor.memory.empty()) return view;
  uint8_t* data = add(name, tensor.memory, use);
  const bool by_offset = tensor.layout == Layout::kOffset;
  view.data = by_offset ? data : data + tensor.origin;
  view.byte_offset = by_offset ? static_cast<uint64_t>(tensor.origin) : 0;
  return view;
}

void Session::settle(const void* data) {
  for (Block& block : blocks_) {
    if (block.data != data) continue;
    place_.copy(block.before.data() + kGuard, block.data,
                static_cast<int64_t>(block.before.size()) - 2 * kGuard);
  }
}

void Session::check(Block& block, bool may_write) {
  const auto size = static_cast<int64_t>(block.before.size());
  std::vector<uint8_t> now(block.before.size());
  place_.copy(now.data(), block.memory, size);
  for (int64_t i = 0; i < size; ++i) {
    const bool is_guard = i < kGuard || i >= size - kGuard;
    if (now[i] == block.before[i] || (!is_guard && may_write)) continue;
    std::string where = fmt::format("byte {} of {}", i - kGuard, size - 2 * kGuard);
    if (i < kGuard) where = fmt::format("{} bytes in front of it", kGuard - i);
    if (i >= size - kGuard) where = fmt::format("{} bytes behind its end", i - (size - kGuard));
    throw Failure(fmt::format("{} was written where it may not be, {}: {:#04x} instead of {:#04x}",
                              block.name, where, now[i], block.before[i]));
  }
  block.after.assign(now.begin() + kGuard, now.end() - kGuard);
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
