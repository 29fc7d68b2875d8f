// The naive model of a cache: every token of every sequence, and the schedule of
// docs/algorithm.md, section 9, walked through token by token. Nothing is encoded here.
#pragma once

#include <cstdint>
#include <vector>

#include "pariskv/pariskv.h"
#include "tests/model/shape.h"

namespace pkv::cache_model {

struct NaiveFit {
  int64_t zone;       // length it was made at
  bool is_requested;  // by refit, with the queries below; else with those of the tokens
  bool has_queries;
  std::vector<uint64_t> queries;
};

struct NaiveLayer {
  struct Entry {
    uint64_t token;
    bool has_query;
  };
  std::vector<Entry> entries;
  int64_t zone = 0;
  std::vector<NaiveFit> fits;  // ascending

  int64_t tokens() const { return static_cast<int64_t>(entries.size()); }
  std::vector<uint64_t> slice(int64_t begin, int64_t count) const;
};

class Naive {
 public:
  explicit Naive(const Shape& shape);

  // The slot that add, fork and load take: the lowest free one; -1: none.
  int32_t free_slot() const;
  bool in_use(int32_t sequence) const { return sequences_[at(sequence)].in_use; }
  std::vector<int32_t> live() const;
  const NaiveLayer& layer(int32_t layer, int32_t sequence) const {
    return sequences_[at(sequence)].layers[at(layer)];
  }
  int64_t shortest(int32_t sequence) const;  // over the layers
  int64_t longest(int32_t sequence) const;

  int32_t add();
  void remove(int32_t sequence);
  void reset(int32_t sequence);
  void append(int32_t layer, int32_t sequence, const std::vector<uint64_t>& tokens,
              bool with_queries = true);
  void append_all(int32_t sequence, const std::vector<uint64_t>& tokens, bool with_queries = true);
  void truncate(int32_t sequence, int64_t tokens);
  int32_t fork(int32_t source, int64_t tokens);
  // The sequence is in `slot` from now on, which is free or the same.
  void move(int32_t sequence, int32_t slot);
  // What a sequence is in all layers, and one that is it, in the lowest free slot.
  std::vector<NaiveLayer> layers(int32_t sequence) const { return sequences_[at(sequence)].layers; }
  int32_t put(std::vector<NaiveLayer> layers);
  void flush();
  // `queries` NULL: to keys alone.
  void refit(int32_t layer, int32_t sequence, const std::vector<uint64_t>* queries);
  void import_codec(int32_t layer) { is_imported_[at(layer)] = true; }

  bool is_imported(int32_t layer) const { return is_imported_[at(layer)]; }
  bool is_encoded(int32_t layer, int32_t sequence) const;
  pkv_cache_regions regions(int32_t layer, int32_t sequence) const;
  // Numbers of the queries that the fit in use was made with; ascending positions.
  std::vector<uint64_t> fit_queries(int32_t layer, int32_t sequence) const;

 private:
  struct Sequence {
    bool in_use = false;
    std::vector<NaiveLayer> layers;
  };
  static std::size_t at(int32_t index) { return static_cast<std::size_t>(index); }
  int64_t zone_of(int64_t tokens) const;
  void grow_zone(int32_t layer, NaiveLayer& state) const;

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<bool> is_imported_;
};

}  // namespace pkv::cache_model
