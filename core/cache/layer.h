// One layer of a cache: the tokens of all sequences in it, their regions, records and codecs.
// Not here: attention (step.h), slots and locks (cache.h).
//
// A change has two halves. What can be refused or run out of memory comes first and touches nothing
// that counts; then come copies and kernels, which only a lost device stops.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/cache/codec_sets.h"
#include "core/cache/host_numbers.h"
#include "core/cache/page_pool.h"
#include "core/cache/page_table.h"
#include "core/cache/query_log.h"
#include "core/cache/shape.h"
#include "core/cache/words.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

// What all layers share.
struct CachePools {
  PageBudget budget;
  PageBudget recent_budget;
  std::unique_ptr<PagePool> sinks;
  std::unique_ptr<PagePool> rows;
  // Device copies of rows in host memory that steps attend to in full; NULL: there are none. They
  // count in no limit, and steps do without those that there is no memory for.
  std::unique_ptr<PagePool> recent;
  std::unique_ptr<PagePool> records;
  std::unique_ptr<PagePool> queries;  // made when the first queries come
  pkv_dtype query_type = 0;
  int64_t query_bytes = 0;  // of one token, all heads
  std::optional<HostNumbers> numbers;
  Buffer encode_scratch;
  Words words;
  // What pkv_cache_reserve has booked, for captured steps. Once one has been captured, what it
  // reads stays where it is.
  int64_t reserved_tokens = 0;
  int64_t reserved_step_tokens = 0;
  bool is_frozen = false;
  Buffer faults;  // [layers, kFaultNumbers] what advance found wrong, in host memory
  static constexpr int64_t kFaultNumbers = 4;
  int64_t* fault(int32_t layer) const { return faults.as<int64_t>() + layer * kFaultNumbers; }
  // Counts since the cache was made, for stats.
  int64_t encoded = 0;
  int64_t fits = 0;
};

// A fit at one length of the zone. Forks share it.
struct Fit {
  int64_t length;
  std::optional<CodecParams> numbers;   // made when it is first used
  std::weak_ptr<CodecSets::Slot> slot;  // while some sequence uses it
  std::shared_ptr<int64_t> count;       // of all fits of the layer
  explicit Fit(int64_t zone, std::shared_ptr<int64_t> all) : length(zone), count(std::move(all)) {
    ++*count;
  }
  ~Fit() { --*count; }
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;
};

// A token that a KV head must not attend to: section 3.6.
struct BadToken {
  int64_t position;
  int32_t head;
};

// A sequence within a layer.
struct SequenceState {
  int64_t tokens = 0;
  int64_t zone = 0;     // as far as the schedule has been followed
  int64_t encoded = 0;  // keys with records: zone or 0
  PageRef sink;
  std::vector<PageRef> rows;               // of positions behind the sink
  std::vector<PageRef> recent;             // of each the device's copy, or none
  std::size_t first_recent = 0;            // pages before it have no copies
  std::vector<PageRef> records;            // of the zone
  std::vector<std::shared_ptr<Fit>> fits;  // ascending by length; all at most `zone`
  std::shared_ptr<Fit> encoded_with;       // NULL: nothing encoded, or an imported codec
  std::shared_ptr<CodecSets::Slot> set;
  QueryLog queries;
  std::vector<BadToken> bad;    // ascending; as far as the host reads rows
  std::vector<int32_t> blocks;  // the caller's pages
};

// The caller's pages, bound to a layer.
struct BoundPool {
  TensorView keys;  // [pages, h, page_tokens, d]
  std::optional<TensorView> values;
  PageTable key_table;
  PageTable value_table;
  int64_t page_tokens() const { return keys.extent(2); }
  int64_t pages() const { return keys.extent(0); }
};

// K and V of neighbouring tokens of one sequence. Strides in elements.
struct RowRun {
  std::byte* keys;    // of KV head 0
  std::byte* values;  // NULL: none of their own
  int64_t key_head_stride, key_token_stride;
  int64_t value_head_stride, value_token_stride;
  int64_t tokens;
};

class Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> create(const CacheShape& shape, CachePools& pools,
                                                       int32_t number);

  const LayerPolicy& policy() const { return policy_; }
  bool is_sparse() const { return policy_.attention == PKV_CACHE_SPARSE; }
  const SequenceState& state(int32_t sequence) const { return states_[index(sequence)]; }
  // Of the zone's keys, those that are attended by records.
  int64_t keys_by_records(const SequenceState& state, bool is_exact) const {
    return is_sparse() && !is_exact ? state.encoded : 0;
  }
  int64_t window() const { return policy_.window; }  // 0: none
  bool has_pool() const { return pool_.has_value(); }
  uint64_t stamp() const { return stamp_; }
  void touch() { ++stamp_; }

  // Tokens of several sequences: keys [n, h, d], values [n, h, dv], queries [n, hq, d], checked.
  struct Input {
    std::span<const int32_t> sequences;
    std::span<const int64_t> counts;
    const TensorView* keys;  // NULL: the tokens lie in the caller's pages already
    const TensorView* values;
    const TensorView* queries;
    bool keeps_bad =
        false;  // rows that are not finite are listed, not refused, whatever the policy
  };
  absl::Status append(const Stream& stream, const Input& input);

  // layer_device.cpp: what the device knows of lengths and tables, where the backend serves Words.
  bool is_on_device() const { return states_on_device_.bytes() > 0; }
  // What has changed on the host goes to pools.words; settle enqueues it too.
  void collect_changes();
  absl::Status settle(const Stream& stream);
  // The rows of `input` to their places; lengths stay.
  absl::Status place(const Stream& stream, const Input& input) const;
  // The device's half of an append, and numbers of a call: advance (pariskv_backend.h) with all
  // that is the layer's. With `appends` the host's lengths hold the tokens already, or will hold
  // them (captured).
  absl::Status advance(const Stream& stream, std::span<const int32_t> sequences,
                       std::span<const int64_t> counts, bool appends, pkv_advance_args args);
  // Whether the device's lengths are behind the host's by just these tokens.
  bool is_behind_by(std::span<const int32_t> sequences, std::span<const int64_t> counts) const;
  // The device's lengths are what the host's are: an append's work has been enqueued.
  void note_appended(std::span<const int32_t> sequences);
  // A launch of a captured append is to come. Room first, then lengths.
  absl::Status make_room(const Stream& stream, int32_t sequence, int64_t count) {
    return take_rows(stream, sequence, states_[index(sequence)].tokens + count);
  }
  void give_room_back(int32_t sequence) { trim(sequence); }
  void follow(int32_t sequence, int64_t count);
  // Encodes and fits what is due.
  absl::Status flush(const Stream& stream, int32_t sequence);
  // `queries` [m, hq, d] or NULL.
  absl::Status refit(const Stream& stream, int32_t sequence, const TensorView* queries);

  // truncate in two halves; `tokens` <= the sequence's.
  struct Cut {
    int32_t sequence = 0;
    int64_t tokens = 0;
    int64_t zone = 0;
    std::vector<std::shared_ptr<Fit>> fits;
    std::shared_ptr<Fit> fit;  // that encodes the zone afterwards
    std::shared_ptr<CodecSets::Slot> set;
    bool is_encoded = false;
    int64_t encode_from = 0;  // of the zone; records before it stay
    std::vector<PageRef> fresh;
  };
  absl::StatusOr<Cut> prepare_cut(const Stream& stream, int32_t sequence, int64_t tokens);
  absl::Status cut(const Stream& stream, Cut& change);
  // The same where a cut finds no memory: the tokens go, and the zone with them if it would be
  // shorter; the next append or flush encodes it anew.
  void take_back(const Stream& stream, int32_t sequence, int64_t tokens);
  // `target` is empty and becomes equal to `source`.
  absl::Status share(const Stream& stream, int32_t source, int32_t target);
  absl::Status clear(const Stream& stream, int32_t sequence);

  // keys [pages, h, page_tokens, d], values the same with dv.
  absl::Status bind(TensorView keys, std::optional<TensorView> values);
  const BoundPool& pool() const { return *pool_; }
  absl::Status set_blocks(const Stream& stream, int32_t sequence, std::vector<int32_t> blocks);
  absl::Status import_codec(const Stream& stream, const CodecParams& numbers);
  absl::StatusOr<CodecParams> codec_of(int32_t sequence) const;
  bool has_imported() const { return imported_.has_value(); }
  const std::optional<CodecParams>& imported() const { return imported_; }
  // For loading: the sequence's fits and kept queries, before its tokens are appended.
  void set_fits(int32_t sequence, std::vector<std::shared_ptr<Fit>> fits);
  std::shared_ptr<Fit> make_fit(int64_t length) const {
    return std::make_shared<Fit>(length, fit_count_);
  }
  // `count` of `queries` [n, hq, d], from `token` on, are those of `position` and what follows.
  absl::Status write_queries(const Stream& stream, int32_t sequence, int64_t position,
                             const TensorView& queries, int64_t token, int64_t count);

  // What the stages take.
  pkv_codec_params codec() const { return sets_->params(); }
  pkv_store store() const;
  pkv_pages sink_keys() const { return pages_of(sink_pages_, shape_.desc.sink, 0); }
  pkv_pages sink_values() const { return pages_of(sink_pages_, shape_.desc.sink, value_offset()); }
  pkv_pages keys() const;  // position row_origin() is the table's first
  pkv_pages values() const;
  // The same rows where they are nearest: what is attended in full.
  pkv_pages near_keys() const;
  pkv_pages near_values() const;
  int64_t row_origin() const { return pool_ ? 0 : shape_.desc.sink; }
  const double* value_sums() const { return value_sums_.as<double>(); }
  const int64_t* good_counts() const { return good_counts_.as<int64_t>(); }
  const int32_t* occupancy() const { return occupancy_.as<int32_t>(); }
  int64_t next_fit_of(const SequenceState& state) const;

  // Neighbouring tokens from `position` on, at most `most`.
  RowRun run_at(const SequenceState& state, int64_t position, int64_t most) const;
  // The same for kernels that read them once.
  RowRun near_run_at(const SequenceState& state, int64_t position, int64_t most) const;
  // Byte-exact, between views of `tokens` rows; fetch does the copying.
  absl::Status copy_run(const Stream& stream, const RowRun& from, const RowRun& to) const;

  absl::Status reserve(const Stream& stream, int64_t tokens);
  int64_t table_bytes() const;
  int64_t occupancy_bytes() const { return occupancy_.bytes(); }
  int64_t codec_bytes() const;

 private:
  Layer(const CacheShape& shape, CachePools& pools, int32_t number, LayerPolicy policy,
        PageTable sinks, PageTable rows, std::optional<PageTable> recent, PageTable records)
      : shape_(shape),
        pools_(pools),
        number_(number),
        policy_(policy),
        states_(static_cast<std::size_t>(shape.desc.sequences)),
        sink_pages_(std::move(sinks)),
        row_pages_(std::move(rows)),
        near_pages_(std::move(recent)),
        record_pages_(std::move(records)) {}

  // What following the schedule up to a number of tokens takes.
  struct Advance {
    int64_t zone = 0;
    std::vector<std::shared_ptr<Fit>> pending;
    std::shared_ptr<Fit> fit;
    std::shared_ptr<CodecSets::Slot> set;
    bool is_encoded = false;
    int64_t encode_from = 0;
    std::vector<PageRef> fresh;
  };

  static std::size_t index(int32_t sequence) { return static_cast<std::size_t>(sequence); }
  int64_t value_offset() const {
    return shape_.value_elements == 0 ? 0 : shape_.key_elements * shape_.element_bytes;
  }
  pkv_pages pages_of(const PageTable& table, int64_t page_tokens, int64_t offset) const;

  // layer_device.cpp
  absl::Status make_states(const Stream& stream);
  pkv_sequence_state state_of(int32_t sequence) const;
  pkv_sequence_state* states_on_device() const {
    return states_on_device_.as<pkv_sequence_state>();
  }
  void note_change(int32_t sequence) {
    if (is_on_device()) touched_.push_back(sequence);
  }

  // layer_rows.cpp
  absl::Status take_rows(const Stream& stream, int32_t sequence, int64_t tokens);
  void trim(int32_t sequence);
  // Recent rows.
  int64_t first_recent_page(int64_t tokens) const;
  absl::Status own_recent(const Stream& stream, int32_t sequence, int64_t page, PageRef fresh);
  void set_near_page(int32_t sequence, int64_t page);
  void drop_recent(int32_t sequence, int64_t pages);
  absl::Status keep_queries(const Stream& stream, int32_t sequence, const TensorView& queries,
                            int64_t first, int64_t count);
  absl::Status copy_queries(const Stream& stream, const TensorView& queries, int64_t token,
                            int64_t count, std::byte* to) const;
  absl::Status grow(const Stream& stream, PageTable& table, int64_t entries) const {
    return table.grow(stream, pools_.words, entries, pools_.is_frozen);
  }
  absl::Status write_rows(const Stream& stream, int32_t sequence, const Input& input, int64_t first,
                          int64_t count, std::vector<BadToken>* bad) const;
  // Tokens `token` .. of an append's input.
  RowRun input_run(const Input& input, int64_t token, int64_t count) const;
  void copy_and_look(const RowRun* from, const RowRun& run, int64_t position,
                     std::vector<BadToken>& found) const;

  // layer_zone.cpp
  absl::StatusOr<Advance> prepare_advance(const Stream& stream, int32_t sequence, int64_t tokens);
  // Host memory for what an advance or a cut writes down, so that its second half takes none.
  void make_room(int32_t sequence, int64_t zone, std::size_t fits);
  absl::Status run_advance(const Stream& stream, int32_t sequence, Advance& advance);
  absl::Status take_records(const SequenceState& state, int64_t zone, int64_t from,
                            std::vector<PageRef>& fresh) const;
  absl::Status place_records(const Stream& stream, int32_t sequence, int64_t zone, int64_t from,
                             std::vector<PageRef>& fresh);
  absl::Status encode(const Stream& stream, int32_t sequence, int64_t begin, int64_t end);
  absl::Status copy_sums(const Stream& stream, int32_t sequence, const PageRef& page,
                         bool to_page) const;
  absl::Status clear_sums(const Stream& stream, int32_t sequence) const;
  void forget_zone(const Stream& stream, int32_t sequence);

  // layer_fit.cpp
  absl::StatusOr<std::shared_ptr<CodecSets::Slot>> use(const Stream& stream,
                                                       const SequenceState& state, Fit& fit);
  absl::StatusOr<CodecParams> compute_fit(const Stream& stream, const SequenceState& state,
                                          int64_t length, const TensorView* queries,
                                          bool uses_kept) const;

  const CacheShape& shape_;
  CachePools& pools_;
  int32_t number_;
  LayerPolicy policy_;
  std::unique_ptr<CodecSets> sets_;  // outlives the states, which hold some of them
  std::vector<SequenceState> states_;
  std::shared_ptr<int64_t> fit_count_ = std::make_shared<int64_t>(0);
  std::optional<CodecParams> imported_;
  std::shared_ptr<CodecSets::Slot> imported_slot_;
  PageTable sink_pages_;
  PageTable row_pages_;
  std::optional<PageTable> near_pages_;  // rows, or their device copies; none: no copies
  PageTable record_pages_;
  std::optional<BoundPool> pool_;
  Buffer value_sums_;   // [sequences, h, dv] double
  Buffer good_counts_;  // [sequences, h] int64
  Buffer occupancy_;    // [sequences, h, d/8, 256] int32
  uint64_t stamp_ = 1;
  Buffer states_on_device_;                // [sequences] pkv_sequence_state
  std::vector<pkv_sequence_state> known_;  // what it holds
  std::vector<int32_t> touched_;           // sequences that may differ from it
  std::vector<int64_t> coming_;            // [sequences] tokens of the append in progress
};

}  // namespace pkv
