// The numbers of a case: shape and options, codec, keys, values, queries, and the zone that the
// reference makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/conformance/bench.h"
#include "tests/conformance/codec.h"
#include "tests/conformance/tensor.h"
#include "tests/conformance/zone.h"

namespace pkv::conformance {

// Fields that a table leaves out keep these values.
struct Setup {
  int32_t d = 128;
  int32_t dv = 0;  // 0: d, and 8 with v_source = k_prefix
  int32_t h = 1;   // KV heads
  int32_t G = 1;   // query heads of a group
  int32_t b = 1;
  int64_t n = 33;  // of the longest row; the others are shorter
  int32_t codec = PKV_CODEC_SCALAR4;
  int32_t vote = PKV_VOTE_GRADED;
  int32_t rounds = 1;
  int32_t sketch_bits = 0;
  int32_t sketch_stride = 1;  // with a sketch only
  int32_t value_norm = 0;
  int32_t v_source = PKV_V_SOURCE_OWN;
  bool has_values = true;           // encode gets values
  bool is_plain = false;            // centre 0 and balance 1
  pkv_dtype dtype = PKV_DTYPE_F32;  // of keys and values
  pkv_dtype query_dtype = PKV_DTYPE_F32;
  Layout layout = Layout::kStrided;  // of all tensors
  const char* keys = "normal";
  const char* queries = "normal";
  const char* values = "normal";
  int64_t page = 0;          // tokens of a page of the store; 0: in one piece
  int64_t room = 3;          // tokens of a row of the store, beyond n
  int32_t sets = 1;          // of the codec
  int32_t query_tokens = 1;  // entries that name the same sequence

  int32_t hq() const { return h * G; }
  pkv_geometry geometry() const;
  // What stands in a case's name: "d128_n33_bf16/b3"; fields at their default are left out.
  std::string text() const;
};

const char* codec_name(int32_t codec);
const char* vote_name(int32_t vote);

// Entries of a batch: which sequences, and how many of their keys.
struct Batch {
  std::vector<int32_t> sequences;
  std::vector<int64_t> lengths;
  int64_t max_length = 0;

  int64_t size() const { return static_cast<int64_t>(sequences.size()); }
  // Lengths of the rows [b * h] or [b * hq].
  std::vector<int64_t> lengths_of_rows(int32_t heads) const;
};
pkv_batch put_batch(Session& session, const Batch& batch);

class World {
 public:
  // `name` seeds the numbers.
  World(const Bench& bench, const Setup& setup, const std::string& name);

  const Setup& setup() const { return setup_; }
  const Codec& codec() const { return codec_; }
  const Batch& batch() const { return batch_; }
  // The batch's sequences, each once, with the most keys that an entry has of it.
  const Batch& indexed() const { return indexed_; }
  int32_t sequences() const {
    return static_cast<int32_t>(batch_.size()) + 1;
  }  // one is in no entry
  int64_t tokens() const { return keys_.shape[2]; }

  const Dense& keys() const { return keys_; }                     // [sequences, h, t, d]
  const std::optional<Dense>& values() const { return values_; }  // [sequences, h, t, dv]
  const Dense& queries() const { return queries_; }               // [b, hq, d]
  // As the layout has them.
  Tensor query_tensor() const { return lay_out(queries_, setup_.layout); }
  // Of the indexed sequences.
  Tensor key_tensor() const { return lay_out(take(keys_, indexed_.sequences), setup_.layout); }
  std::optional<Tensor> value_tensor() const;

  // What encoding all keys gives.
  const Zone& zone() const;

 private:
  void make_batch(Random& random);
  void make_numbers(Random& random);
  void share_prefixes(Dense& tokens) const;

  const Bench& bench_;
  Setup setup_;
  Codec codec_;
  Batch batch_;
  Batch indexed_;
  Dense keys_;
  std::optional<Dense> values_;
  Dense queries_;
  mutable std::optional<Zone> zone_;
};

}  // namespace pkv::conformance
