// Two backends with the same keys: cpu_ref, which encodes, and cpu, which gets its records. A stage
// runs on either with the same arguments but for the store and the outputs.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cpu/isa.h"
#include "core/format/half.h"
#include "tests/unit/cpu_ref/oracle.h"

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);

namespace pkv::test {

// Elements in a dtype of choice, rows `gap` elements apart, from an odd offset: a view that
// nothing is aligned in. What lies between rows is NaN.
class View {
 public:
  View(Tensor& source, pkv_dtype dtype, int64_t gap) {
    const pkv_tensor dense = source.view();
    shape_.assign(dense.shape, dense.shape + dense.ndim);
    const int64_t width = shape_.back();
    strides_.assign(shape_.size(), 1);
    int64_t stride = width + gap;
    for (size_t axis = shape_.size() - 1; axis-- > 0;) {
      strides_[axis] = stride;
      stride *= shape_[axis];
    }
    const int64_t size = dtype == PKV_DTYPE_F32 ? 4 : 2;
    const int64_t rows = width == 0 ? 0 : static_cast<int64_t>(source.data().size()) / width;
    bytes_.assign(static_cast<size_t>((kOffset + rows * (width + gap)) * size), std::byte{0xff});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < width; ++j) {
        float& x = source.data()[static_cast<size_t>(row * width + j)];
        x = store(dtype, (kOffset + row * (width + gap) + j) * size, x);
      }
    }
    view_ = dense;
    view_.data = bytes_.data();
    view_.byte_offset = static_cast<uint64_t>(kOffset * size);
    view_.dtype = dtype;
  }

  // `source` holds the rounded elements from now on, so that both say the same.
  pkv_tensor tensor() {
    view_.shape = shape_.data();
    view_.strides = strides_.data();
    return view_;
  }

 private:
  static constexpr int64_t kOffset = 3;

  float store(pkv_dtype dtype, int64_t at, float x) {
    std::byte* to = bytes_.data() + at;
    if (dtype == PKV_DTYPE_F32) {
      std::memcpy(to, &x, sizeof x);
      return x;
    }
    const bool is_half = dtype == PKV_DTYPE_F16;
    const uint16_t bits = is_half ? format::float_to_f16(x) : format::float_to_bf16(x);
    std::memcpy(to, &bits, sizeof bits);
    return is_half ? format::f16_to_float(bits) : format::bf16_to_float(bits);
  }

  std::vector<std::byte> bytes_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  pkv_tensor view_ = {};
};

// Instruction sets to try; those that the host lacks are left out.
inline std::vector<std::string> host_sets() {
  std::vector<std::string> result;
  const std::string names = cpu::Isa::names();
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(", ", begin), names.size());
    result.push_back(names.substr(begin, end - begin));
    begin = end + 2;
  }
  return result;
}

class Twin {
 public:
  Twin(const pkv_geometry& geometry, int64_t capacity, int32_t sequences = 1)
      : ref(geometry, capacity, sequences),
        cpu(pkv_cpu_query(PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR, &host_)),
        rows_(int64_t{sequences} * geometry.kv_heads) {
    host_.struct_size = sizeof host_;
    host_.user = this;
    host_.report = [](const pkv_host* host, const char* text) {
      static_cast<Twin*>(host->user)->reported_ = text;
    };
    expect(cpu->device_open(&host_, 0, &device));
    store.capacity = capacity;
    expect(cpu->store_row_bytes(device, &geometry, capacity, &store.row_bytes));
    expect(cpu->memory_alloc(device, PKV_MEMORY_DEVICE, rows_ * store.row_bytes, &store.base));
    expect(cpu->memory_fill(device, nullptr, store.base, 0xA5, rows_ * store.row_bytes));
  }
  ~Twin() {
    const pkv_store& piece = pages_ == nullptr ? store : piece_;
    cpu->memory_free(device, PKV_MEMORY_DEVICE, piece.base, rows_ * piece.row_bytes);
    if (pages_ != nullptr) cpu->memory_free(device, PKV_MEMORY_DEVICE, pages_, page_bytes_);
    cpu->device_close(device);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  void set(const char* name, const std::string& value) {
    expect(cpu->device_set(device, name, value.c_str()));
  }

  // From now on cpu's store is in pages, whose order is none; nothing is in them.
  void use_pages(int64_t capacity) {
    piece_ = store;
    store = {};
    store.capacity = capacity;
    expect(cpu->store_row_bytes(device, &ref.geometry, capacity, &store.row_bytes));
    const int64_t sequences = rows_ / ref.geometry.kv_heads;
    const int64_t pages = piece_.capacity / capacity + 1;
    const int64_t bytes = ref.geometry.kv_heads * store.row_bytes;
    page_bytes_ = sequences * pages * bytes;
    expect(cpu->memory_alloc(device, PKV_MEMORY_DEVICE, page_bytes_, &pages_));
    expect(cpu->memory_fill(device, nullptr, pages_, 0xA5, page_bytes_));
    for (int64_t page = 0; page < sequences * pages; ++page) {
      const int64_t place = page % 2 == 0 ? page / 2 : sequences * pages - 1 - page / 2;
      table_.push_back(static_cast<std::byte*>(pages_) + place * bytes);
    }
    store.pages = table_.data();
    store.pages_stride = pages;
  }

  // The text of the last refusal.
  const std::string& reported() const { return reported_; }

  // Records of the first `count` positions of each row, from cpu_ref to cpu.
  void copy_records(int64_t count) {
    const format::RecordSizes s = format::record_sizes(ref.geometry);
    const auto plane = [&](int bytes, int64_t entries) {
      return std::vector<uint16_t>(static_cast<size_t>((bytes * entries + 1) / 2 + 1));
    };
    const int64_t sketches = format::sketch_count(ref.geometry, count);
    auto signs = plane(s.signs, count);
    auto vote_factors = plane(s.vote_factors, count);
    auto codes = plane(s.codes, count);
    auto factors = plane(s.factors, count);
    auto value_signs = plane(s.value_signs, sketches);
    auto value_codes = plane(s.value_codes, sketches);
    auto value_factors = plane(s.value_factors, sketches);
    auto value_norms = plane(s.value_norms, count);
    pkv_records records = {};
    records.struct_size = sizeof records;
    records.row_tokens = count;
    records.signs = reinterpret_cast<uint8_t*>(signs.data());
    records.vote_factors = vote_factors.data();
    records.codes = reinterpret_cast<uint8_t*>(codes.data());
    records.factors = factors.data();
    records.value_signs = reinterpret_cast<uint8_t*>(value_signs.data());
    records.value_codes = reinterpret_cast<uint8_t*>(value_codes.data());
    records.value_factors = value_factors.data();
    records.value_norms = value_norms.data();
    for (int64_t row = 0; row < rows_; ++row) {
      ref.expect(ref.table->store_export(ref.device, nullptr, &ref.geometry, &ref.store, row, 0,
                                         count, &records));
      expect(cpu->store_import(device, nullptr, &ref.geometry, &store, row, 0, count, &records));
    }
  }

  // supports, scratch_bytes, run, with poisoned scratch between guards of exactly that size.
  template <class Slots, class Args>
  void run(const Slots& slots, const Args& args) {
    expect(slots.supports(device, &args));
    int64_t bytes = -1;
    expect(slots.scratch_bytes(device, &args, &bytes));
    constexpr int64_t kGuard = 256;
    void* memory = nullptr;
    expect(cpu->memory_alloc(device, PKV_MEMORY_DEVICE, bytes + kGuard, &memory));
    auto* scratch = static_cast<uint8_t*>(memory);
    std::memset(scratch, 0xA5, static_cast<size_t>(bytes + kGuard));
    const pkv_status status = slots.run(device, nullptr, &args, scratch);
    bool is_touched = false;
    for (int64_t i = 0; i < kGuard; ++i) is_touched |= scratch[bytes + i] != 0xA5;
    cpu->memory_free(device, PKV_MEMORY_DEVICE, memory, bytes + kGuard);
    expect(status);
    if (is_touched) throw std::runtime_error("wrote behind its scratch");
  }

 private:
  void expect(pkv_status status) const {
    if (status != PKV_OK) throw std::runtime_error("cpu: " + reported_);
  }

  pkv_host host_ = {};
  std::string reported_;

 public:
  Oracle ref;
  const pkv_backend* cpu;
  pkv_backend_device* device = nullptr;
  pkv_store store = {};

 private:
  int64_t rows_;
  pkv_store piece_ = {};  // as it was before use_pages
  void* pages_ = nullptr;
  int64_t page_bytes_ = 0;
  std::vector<void*> table_;
};

}  // namespace pkv::test
