// A cache behind the C API, and tokens whose keys, values and queries follow from a number.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "pariskv/pariskv.h"

namespace pkv::test {

#define REQUIRE_OK(call)            \
  do {                              \
    const pkv_status got_ = (call); \
    INFO(pkv_last_error());         \
    REQUIRE(got_ == PKV_OK);        \
  } while (false)
#define CHECK_REFUSED(call, status, text)                                 \
  do {                                                                    \
    CHECK((call) == (status));                                            \
    INFO(pkv_last_error());                                               \
    CHECK(std::string(pkv_last_error()).find(text) != std::string::npos); \
  } while (false)

struct Shape {
  std::string backend = "cpu";
  int32_t layers = 1;
  int32_t sequences = 4;
  int32_t kv_heads = 2;
  int32_t query_heads = 4;
  int32_t d = 32;
  int64_t sink = 8;
  int64_t local = 16;
  int64_t interval = 32;
  int64_t dense_below = 64;
  int64_t page_tokens = 64;
  int64_t capacity = 4096;
  int64_t max_bytes = 0;
  int32_t fit_positions = 24;
  int32_t deferred = 0;
  int32_t refits = 1;
  std::vector<std::pair<std::string, std::string>> options = {{"k", "12"}, {"candidates", "0.3"}};
  std::vector<pkv_cache_layer> policies;
  float soft_cap = 0;
  std::vector<float> sink_logits;
};

// Whose files are small, with fits and kept queries from a few tokens on.
inline Shape small_shape() {
  Shape shape;
  shape.kv_heads = 1;
  shape.query_heads = 1;
  shape.d = 8;
  shape.dense_below = 32;
  shape.fit_positions = 4;
  shape.options = {{"k", "4"}, {"candidates", "0.5"}};
  return shape;
}

// f32 numbers with a shape, as a tensor.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::vector<int64_t> shape, float value = 0)
      : shape_(std::move(shape)), data_(static_cast<std::size_t>(count()), value) {}
  int64_t count() const {
    int64_t n = 1;
    for (const int64_t extent : shape_) n *= extent;
    return n;
  }
  float* data() { return data_.data(); }
  const std::vector<float>& numbers() const { return data_; }
  pkv_tensor view() const {
    pkv_tensor tensor{};
    tensor.data = const_cast<float*>(data_.data());
    tensor.device_type = PKV_DEVICE_CPU;
    tensor.ndim = static_cast<int32_t>(shape_.size());
    tensor.dtype = PKV_DTYPE_F32;
    tensor.shape = shape_.data();
    return tensor;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<float> data_;
};

enum class Role : uint32_t { kKey = 1, kValue = 2, kQuery = 3, kDeviation = 4 };
// In an id: the token has a NaN in the key of KV head 0, an infinity in the value of KV head 1, a
// key of KV head 0 whose squares have no finite sum.
constexpr uint64_t kNanKey = uint64_t{1} << 60;
constexpr uint64_t kInfiniteValue = uint64_t{1} << 61;
constexpr uint64_t kHugeKey = uint64_t{1} << 62;
// The vector of one head of token `id`: about normal, keys around a common centre (kDeviation:
// from it).
void fill_token(uint64_t id, Role role, int32_t head, int32_t d, float* out);
// [n, heads, d] of tokens.
Tensor tokens_of(const std::vector<uint64_t>& ids, Role role, int32_t heads, int32_t d);

// What a step answers for its query tokens.
struct Answer {
  std::vector<float> output;       // [n, hq, d]
  std::vector<float> lse;          // [n, hq]
  std::vector<int32_t> positions;  // [n, h, k]
  std::vector<int32_t> counts;     // [n, h]
  bool operator==(const Answer&) const = default;
};

class World {
 public:
  explicit World(const Shape& shape);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Shape& shape() const { return shape_; }
  pkv_cache* cache() const { return cache_; }
  pkv_stream* stream() const { return stream_; }
  pkv_device* device() const { return device_; }
  pkv_config* config() const { return config_; }
  const pkv_cache_desc& desc() const { return desc_; }
  int32_t k() const;

  int32_t add();
  pkv_status try_append(int32_t layer, const std::vector<int32_t>& sequences,
                        const std::vector<std::vector<uint64_t>>& ids, bool with_queries = true);
  void append(int32_t sequence, const std::vector<uint64_t>& ids, bool with_queries = true,
              int32_t layer = 0);
  // Attends for the last ids.size() tokens, with the queries of these.
  Answer attend(int32_t sequence, const std::vector<uint64_t>& ids, uint32_t flags = 0,
                int32_t layer = 0);
  // Appends, and attends for what was appended; several sequences in one call.
  Answer decode(const std::vector<int32_t>& sequences,
                const std::vector<std::vector<uint64_t>>& ids, int32_t layer = 0);
  int64_t length(int32_t sequence, int32_t layer = 0) const;
  pkv_cache_regions regions(int32_t sequence, int32_t layer = 0) const;
  void truncate(int32_t sequence, int64_t tokens);
  int32_t fork(int32_t sequence, int64_t tokens = -1);
  pkv_cache_usage usage() const;
  pkv_cache_stats stats() const;

  // Everything that a sequence is: records, sums, rows, codec, regions, byte by byte.
  std::vector<uint8_t> state(int32_t sequence, int32_t layer = 0) const;
  std::vector<uint8_t> records(int32_t sequence, int32_t layer = 0) const;

 private:
  Answer call(int32_t layer, const std::vector<int32_t>& sequences,
              const std::vector<std::vector<uint64_t>>& ids, uint32_t flags, bool appends);

  Shape shape_;
  pkv_runtime* runtime_ = nullptr;
  pkv_device* device_ = nullptr;
  pkv_stream* stream_ = nullptr;
  pkv_config* config_ = nullptr;
  pkv_cache_desc desc_{};
  pkv_cache* cache_ = nullptr;
};

// ids first, first + 1, ..
std::vector<uint64_t> ids_from(uint64_t first, int64_t count);

}  // namespace pkv::test
