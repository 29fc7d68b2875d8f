// The state of the sequence machine: the objects that calls have made, of which any, or none, is
// handed to the next call. What a call must keep is checked after each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pariskv/pariskv.h"
#include "tests/fuzz/api_tensor.h"

namespace pkv::fuzz {

struct IndexSlot {
  pkv_index* index = nullptr;
  pkv_geometry geometry{};
};
struct PlanSlot {
  pkv_plan* plan = nullptr;
  pkv_geometry geometry{};
  int64_t k = 0, candidates = 0, samples = 0, scratch = 0;
  int32_t batch = 0, query_heads = 0;
};
struct CacheSlot {
  pkv_cache* cache = nullptr;
  pkv_cache_desc desc{};
  int64_t head_dim = 0, value_dim = 0, k = 0;
  bool has_values = false;
  bool is_pooled = false;  // a layer's rows lie in pages of ours
};

class Machine {
 public:
  // Runtime, devices and streams are there from the beginning.
  Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  // A sequence of calls; everything it made is destroyed in an order that the bytes say.
  void run(Bytes& bytes);

 private:
  void call(Bytes& bytes);
  void configure(Bytes& bytes);
  void make_codec(Bytes& bytes);
  void make_index(Bytes& bytes);
  void use_index(Bytes& bytes);
  void make_plan(Bytes& bytes);
  void use_plan(Bytes& bytes);
  void use_memory(Bytes& bytes);
  void make_cache(Bytes& bytes);
  void use_sequences(Bytes& bytes);
  void append_tokens(Bytes& bytes);
  void use_hits(Bytes& bytes);
  void look_inside(Bytes& bytes);
  void use_files(Bytes& bytes);
  void use_pages(Bytes& bytes);
  void destroy_one(Bytes& bytes);
  void destroy_all();

  // Never a bug of ours; a refusal has a text; what it leaves is told by `is_done`.
  static bool is_done(pkv_status status);
  // The same of a call that may change a cache: a refusal has changed nothing.
  template <class Call>
  void change(CacheSlot* slot, Call call);
  static std::string state_of(const CacheSlot& slot);

  template <class Slot>
  Slot* pick(Bytes& bytes, std::vector<Slot>& slots) {
    if (slots.empty() || bytes.byte() >= 250) return nullptr;
    return &slots[bytes.below(static_cast<uint32_t>(slots.size()))];
  }
  pkv_device* device(Bytes& bytes);
  pkv_stream* stream(Bytes& bytes);

  pkv_runtime* runtime_ = nullptr;
  pkv_device* devices_[2] = {};
  pkv_stream* streams_[2] = {};
  pkv_config* base_ = nullptr;
  Folder folder_;
  Memory input_{1 << 16};
  std::vector<pkv_config*> configs_;
  std::vector<pkv_codec*> codecs_;
  std::vector<IndexSlot> indexes_;
  std::vector<PlanSlot> plans_;
  std::vector<pkv_row_cache*> row_caches_;
  std::vector<CacheSlot> caches_;
  std::vector<pkv_event*> events_;
  // Pages that caches were given; they stay until all caches are gone.
  std::vector<Memory> pools_;
};

}  // namespace pkv::fuzz
