// What tokens consist of: K, V and query rows as functions of a token's number, and tensors that
// hold them. Every number is a multiple of 1/64 below 4, so f32, f16 and bf16 hold it exactly and
// sums of it in double are exact too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pariskv/pariskv.h"
#include "tests/model/kept_rows.h"
#include "tests/model/shape.h"

namespace pkv::cache_model {

// Bits of a token's number that change what it is made of.
inline constexpr uint64_t kPlanted = uint64_t{1} << 62;  // its key is the aimed query of the rest
inline constexpr uint64_t kAimed = uint64_t{1} << 61;    // its query heads are equal in a group
inline constexpr uint64_t kNan = uint64_t{1} << 60;      // its key begins with NaN

class Tensor {
 public:
  Tensor(pkv_dtype dtype, std::vector<int64_t> shape);

  float get(int64_t element) const;
  void set(int64_t element, float number);
  void set(int64_t first, std::span<const float> numbers);
  void fill(float number);
  std::vector<float> numbers() const;
  int64_t size() const { return size_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  pkv_dtype dtype() const { return dtype_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::byte* at(int64_t element) {
    return bytes_.data() + static_cast<std::size_t>(element) * (dtype_ == PKV_DTYPE_F32 ? 4 : 2);
  }
  // Valid as long as the tensor stays where it is.
  pkv_tensor view() const;
  pkv_tensor host_view() const;  // as memory of the host, for calls that end with _sync
  // What views say of their memory: that of the program, unless it takes it from a device.
  static inline pkv_device_type device_type = PKV_DEVICE_CPU;

 private:
  pkv_dtype dtype_;
  std::vector<int64_t> shape_;
  int64_t size_;
  std::vector<std::byte> bytes_;
};

// No tensor: ndim 0.
pkv_tensor no_tensor();

// `count` numbers of a dtype, from or to memory.
void read_numbers(pkv_dtype dtype, const std::byte* from, std::size_t count, float* to);
void write_numbers(pkv_dtype dtype, std::span<const float> from, std::byte* to);

class Content {
 public:
  // With `kept`, rows of the cache's dtype are made once.
  explicit Content(const Shape& shape, std::shared_ptr<KeptRows> kept = nullptr);

  std::vector<float> key(uint64_t token, int32_t layer, int32_t kv_head) const;
  // Of width value_dim, whatever v_source.
  std::vector<float> value(uint64_t token, int32_t layer, int32_t kv_head) const;
  std::vector<float> query(uint64_t token, int32_t layer, int32_t query_head) const;

  // K, then V of all KV heads of a token, [h, d] and [h, dv] in the cache's dtype. They stay until
  // the next call, or are in `room`.
  struct Rows {
    const std::byte* keys;
    const std::byte* values;
  };
  Rows rows(uint64_t token, int32_t layer, std::vector<std::byte>& room) const;
  std::size_t key_bytes() const;  // of one row
  std::size_t value_bytes() const;

  // The cache's dtype. [n, h, d] as pkv_cache takes them, [h, n, d] as pkv_index does.
  Tensor keys(std::span<const uint64_t> tokens, int32_t layer) const;
  Tensor values(std::span<const uint64_t> tokens, int32_t layer) const;
  Tensor head_keys(std::span<const uint64_t> tokens, int32_t layer) const;
  Tensor head_values(std::span<const uint64_t> tokens, int32_t layer) const;
  // [n, hq, d] and [hq, n, d] of the dtype of queries.
  Tensor queries(std::span<const uint64_t> tokens, int32_t layer) const;
  Tensor head_queries(std::span<const uint64_t> tokens, int32_t layer) const;

 private:
  Tensor gather_rows(std::span<const uint64_t> tokens, int32_t layer, bool values,
                     bool heads_first) const;

  const Shape& shape_;
  std::shared_ptr<KeptRows> kept_;
  std::vector<std::vector<int32_t>> centers_;  // [layers, h], in 64ths
};

}  // namespace pkv::cache_model
