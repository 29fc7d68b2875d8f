// Backends without a fault that compute bounded stages another way: in fp32, in one pass, where
// cpu_ref uses double. Conformance must let them pass, or its tolerances are too tight. Beside
// them, the same with one fault each in a rule that no argument of cpu_ref can bend.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {

std::span<const Mutant> single_attend();
std::span<const Mutant> single_fit();
std::span<const Mutant> single_rerank();

// Element j of a vector, as fp32, and of the row of a tensor at the given leading indices.
float element(pkv_dtype dtype, const uint8_t* vector, int64_t j);
float element(const pkv_tensor& tensor, std::initializer_list<int64_t> leading, int64_t j);
// The row of a tensor, and the vector at a position in pages.
const uint8_t* vector_at(const pkv_tensor& tensor, std::initializer_list<int64_t> leading);
const uint8_t* vector_at(const pkv_pages& pages, int64_t sequence, int32_t head, int64_t position);
// Stores it, rounded to the dtype.
void set_element(const pkv_tensor& tensor, std::initializer_list<int64_t> leading, int64_t j,
                 float value);

// A logit with its cap (8.1).
float capped(float logit, float soft_cap);

// Parameters of one KV head for an entry of the batch, out of [sets, h, dim].
const float* codec_row(const pkv_codec_params& codec, const float* numbers, int64_t entry,
                       int32_t kv_head, int32_t dim);

// +1 or -1 times the level of each coordinate: of keys (codec of polar4), or of value sketches.
struct Levels {
  std::vector<float> of;  // by code
  int32_t planes;
};
Levels polar_levels();
Levels sketch_levels(int32_t sketch_bits);

// Positions of the samples of a row of n keys. docs/algorithm.md, section 6.4.
std::vector<int32_t> sample_positions(const pkv_geometry& geometry, int64_t n, int64_t most);

// One canonical record of a store's row; values of positions that have a sketch only.
class CanonicalRecord {
 public:
  CanonicalRecord(const pkv_geometry& geometry, const pkv_store& store, int64_t row,
                  int64_t position);
  std::vector<float> keys(const Levels& levels) const { return decoded(0, 2, levels); }
  std::vector<float> values(const Levels& levels) const { return decoded(4, 5, levels); }
  float factor(int32_t b) const { return number(3, b); }
  float value_factor() const { return number(6, 0); }
  float value_norm() const { return number(7, 0); }
  bool is_bad() const { return factor(0) != factor(0); }

 private:
  std::vector<float> decoded(int signs, int codes, const Levels& levels) const;
  float number(int plane, int32_t i) const;
  std::vector<uint8_t> planes_[8];
};

// rotate(x), and its inverse, in fp32. docs/algorithm.md, section 2.3.
void rotate(std::vector<float>& x, const float* signs_1, const float* signs_2, int32_t rounds);
void unrotate(std::vector<float>& y, const float* signs_1, const float* signs_2);

}  // namespace pkv::mutants
