// A cache with the machine it runs on, and its calls over tokens by number. Memory of the host, so
// for backends on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pariskv/pariskv.hpp"
#include "tests/model/content.h"
#include "tests/model/shape.h"

namespace pkv::cache_model {

// `backend`, or in its place a plug-in: PKV_CACHE_PLUGIN names its file, PKV_CACHE_STREAMS=deferred
// asks gpu-host for streams that run when they are waited for.
struct Machine {
  explicit Machine(const char* backend);
  Runtime runtime;
  Device device;
  Stream stream;
};

template <class Struct, pkv_status (*kInit)(Struct*, size_t)>
Struct filled() {
  return initialised<Struct, kInit>();
}

Config config_of(const Shape& shape);

// pkv_cache_desc with the arrays it points to.
struct Desc {
  explicit Desc(const Shape& shape);
  Desc(const Desc&) = delete;
  Desc& operator=(const Desc&) = delete;
  std::vector<pkv_cache_layer> policies;
  pkv_cache_desc c;
};

// What one entry of a batch brings: tokens to append, or the numbers of queries.
struct Part {
  int32_t sequence;
  std::vector<uint64_t> tokens;
};
using Parts = std::vector<Part>;
int64_t token_count(const Parts& parts);

// pkv_cache_batch with its arrays.
struct Batch {
  explicit Batch(const Parts& parts);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  std::vector<int32_t> sequences;
  std::vector<int64_t> counts;
  pkv_cache_batch c;
};

// pkv_cache_hits with its arrays, for n query tokens. Filled with what no call writes.
struct Found {
  Found() = default;
  Found(const Shape& shape, int64_t k, int64_t query_tokens, int64_t candidates_stride);
  pkv_cache_hits view();
  bool operator==(const Found&) const = default;

  int64_t n = 0, stride = 0;
  std::vector<int32_t> positions, counts, candidates, candidate_counts;
  std::vector<float> scores, estimates;
  uint64_t stamp = 0;
};

struct Attended {
  std::vector<float> output;  // [n, hq, dv]
  std::vector<float> lse;     // [n, hq]
  Found found;
};

// Whether two lists of numbers have the same bits.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

class World {
 public:
  // With `kept` for one thread.
  World(Machine& machine, const Shape& shape, std::shared_ptr<KeptRows> kept = nullptr);
  ~World() { pkv_cache_destroy(cache_); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Shape& shape() const { return shape_; }
  const Content& content() const { return content_; }
  Machine& machine() const { return machine_; }
  const Config& config() const { return config_; }
  pkv_cache* cache() const { return cache_; }
  pkv_stream* stream() const { return machine_.stream.get(); }
  int32_t k() const { return k_; }

  // Statuses are the caller's to check; queries of appended tokens are those of their numbers.
  pkv_status append(int32_t layer, const Parts& parts, bool with_queries = true);
  pkv_status decode_step(int32_t layer, const Parts& parts, uint32_t flags, Attended& out);
  // The parts' tokens are queries.
  pkv_status attend(int32_t layer, const Parts& parts, uint32_t flags, Attended& out);
  // With room for so many tokens more than there are, which another thread may append.
  pkv_status retrieve(int32_t layer, const Parts& parts, Found& out, int64_t more_tokens = 0);
  pkv_status fetch(int32_t layer, const Parts& parts, Found& found, Tensor& keys, Tensor& values);
  pkv_status refit(int32_t layer, int32_t sequence, const std::vector<uint64_t>* queries);

  // The codec stays with the world. A layer's codec that was imported, or NULL.
  pkv_status import_codec(int32_t layer, Codec codec);
  const Codec* imported(int32_t layer) const {
    const auto& codec = imported_[static_cast<std::size_t>(layer)];
    return codec.has_value() ? &*codec : nullptr;
  }

  // These throw pkv::Error.
  int32_t add();
  void append_all(int32_t sequence, const std::vector<uint64_t>& tokens, bool with_queries = true);
  void truncate(int32_t sequence, int64_t tokens);
  int32_t fork(int32_t source, int64_t tokens);
  void remove(int32_t sequence);
  void reset(int32_t sequence);
  void flush();
  int64_t length(int32_t layer, int32_t sequence) const;
  pkv_cache_regions regions(int32_t layer, int32_t sequence) const;
  pkv_cache_stats stats() const;
  pkv_cache_usage usage() const;
  int64_t candidates(int64_t tokens) const;

  // Everything a sequence holds in one layer, as bytes: rows, and of an encoded zone records, sums
  // and codec. Equal for sequences that answer alike.
  std::string content_of(int32_t layer, int32_t sequence);
  // Records of one KV head in canonical planes, one after the other.
  std::string records_of(int32_t layer, int32_t sequence, int32_t kv_head, int64_t begin,
                         int64_t count);

 private:
  Found room_for(const Parts& parts, int64_t more_tokens) const;

  Machine& machine_;
  Shape shape_;
  Content content_;
  Config config_;
  int32_t k_;
  std::vector<std::optional<Codec>> imported_;  // by layer
  pkv_cache* cache_ = nullptr;
};

}  // namespace pkv::cache_model
