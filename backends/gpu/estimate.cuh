// Estimates of the products of a row's queries with keys, from their records. docs/algorithm.md,
// section 6.1.
// A group of 2 to 16 lanes takes a key: each lane loads 16 bytes, the codes of 32 dims, and the
// word of their signs. A query number is an integer of 16 bits in a high and a low signed byte, a
// level is 2 y + 1 with y in a signed byte, so that
//   dot = 2 (256 sum y hi + sum y lo) + sum c,
// products of four bytes at a time. Within a chunk the dims stand in the order in which the bits of
// a code's planes become bytes at least cost: vector v, word e, byte b of a head are dims
//   32 chunk + 16 (e % 2) + 4 b + 2 (v % 2) + e / 2, hi for v < 2, else lo.
// Traffic per key, d = 128: 64 B of record and 16 B of signs gathered; 4 B written per head.
// Exact for scalar4 and scalar5; polar4 sums floats.
// Differs from cpu_ref: the integer form of levels and queries; polar4 in fp32.
#pragma once

#include "backends/gpu/fold.cuh"
#include "backends/gpu/levels.cuh"
#include "backends/gpu/query.cuh"
#include "backends/gpu/records.cuh"

namespace PKV_GPU_NS {

inline constexpr float kEstimateLimit = 1e30F;
inline constexpr int kQueryVectors = 4;  // of four words, per head and chunk of a scalar codec

// What an estimate takes from a head, beside its numbers.
struct alignas(16) HeadTerms {
  float bias;   // b_g
  float unit;   // scalar: unit_g
  int32_t sum;  // scalar: sum_j c_g,j
  int32_t unused;
};

// What section 6.1 says of the queries, of all rows of a call, in scratch.
struct EstimateQueries {
  uint32_t* words;   // scalar: [rows, G, kQueryVectors, chunks, 4], as above
  HeadTerms* terms;  // [rows, G]
};

struct EstimateQueryArgs {
  CodecView codec;
  TensorView queries;  // [b, hq, d]
  PreparedQueries prepared;
  int64_t rows;
  int32_t chunks;  // of a record
  EstimateQueries out;
};

// 6.1: c_g,j
PKV_DEVICE int32_t scalar_integer(float y, float M) {
  return M == 0.0F ? 0 : static_cast<int32_t>(frint(fdiv_rn(fmul_rn(32512.0F, y), M)));
}

// Words, [kQueryVectors, chunks, 4], and terms of one head, of a scalar codec, from its d numbers
// q'; by a group of 32 lanes. The bias stays.
PKV_DEVICE void prepare_scalar_head(int32_t d, int32_t chunks, float gain, const float* y,
                                    uint32_t* words, HeadTerms* terms) {
  using Group = LaneGroup<32>;
  float M = 0.0F;
  for (int32_t j = Group::rank(); j < d; j += 32) M = M < absolute(y[j]) ? absolute(y[j]) : M;
  M = Group::max(M);
  int32_t sum = 0;
  for (int32_t i = Group::rank(); i < 8 * chunks; i += 32) {
    const int32_t chunk = i / 8;
    const int32_t v = i % 8 / 4;
    const int32_t e = i % 4;
    uint32_t high = 0;
    uint32_t low = 0;
    for (int32_t b = 0; b < 4; ++b) {
      const int32_t j = 32 * chunk + 16 * (e % 2) + 4 * b + 2 * v + e / 2;
      const int32_t c = j < d ? scalar_integer(y[j], M) : 0;
      const int32_t hi = (c + 128) >> 8;
      high |= (static_cast<uint32_t>(hi) & 0xffU) << (8 * b);
      low |= (static_cast<uint32_t>(c) & 0xffU) << (8 * b);  // c - 256 hi, as a byte
      sum += c;
    }
    words[(v * chunks + chunk) * 4 + e] = high;
    words[((v + 2) * chunks + chunk) * 4 + e] = low;
  }
  sum = Group::sum(sum);
  if (Group::rank() != 0) return;
  terms->unit = fdiv_rn(fdiv_rn(M, 32512.0F), gain);
  terms->sum = sum;
}

// What estimates take from head g of a row, by a group of 32 lanes.
PKV_DEVICE void prepare_estimate_head(const EstimateQueryArgs& a, int64_t row, int32_t g) {
  const int32_t d = a.codec.geometry.head_dim;
  const RowIndex at = row_index(row, a.codec.geometry.kv_heads);
  const int64_t head = row * a.prepared.group + g;
  const float* mu = a.codec.key_row(a.codec.params.center, a.codec.set(at.entry), at.head);
  const std::byte* q = a.queries.row(at.entry, int64_t{at.head} * a.prepared.group + g);
  HeadTerms terms{};
  terms.bias =
      fold_group(d, [&](int j) { return fmul_rn(load_element(a.queries.dtype, q, j), mu[j]); });
  if (a.codec.geometry.codec != PKV_CODEC_POLAR4) {
    prepare_scalar_head(d, a.chunks, a.codec.key_plan.gain, a.prepared.heads + head * d,
                        a.out.words + head * kQueryVectors * a.chunks * 4, &terms);
  }
  if (LaneGroup<32>::rank() == 0) a.out.terms[head] = terms;
}

// Group of 32 lanes: a head of a row. Rows of bad queries are left undefined.
template <class Traits>
PKV_KERNEL(Traits::kEstimateQueryThreads)
prepare_estimates(EstimateQueryArgs a) {
  using Group = LaneGroup<32>;
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    if (a.prepared.bad[row] != 0) continue;
    const auto step = static_cast<int32_t>(grid_x()) * Group::count();
    for (int32_t g = static_cast<int32_t>(block_x()) * Group::count() + Group::index();
         g < a.prepared.group; g += step) {
      prepare_estimate_head(a, row, g);
    }
  }
}

// 6.1: est = e limited to [-1e30, 1e30], a NaN becoming -1e30.
PKV_DEVICE float limited(float e) {
  if (!(e >= -kEstimateLimit)) return -kEstimateLimit;
  return e > kEstimateLimit ? kEstimateLimit : e;
}

// How lanes share a key: kLanes, each of kRounds chunks; kKeys keys at a time.
template <int kLanes_, int kRounds_, int kKeys_>
struct EstimateShape {
  static constexpr int kLanes = kLanes_;
  static constexpr int kRounds = kRounds_;
  static constexpr int kKeys = kKeys_;
  // Blocks that share a multiprocessor: what more would gain, spilled registers lose.
  static constexpr int kResident = kRounds == 1 ? 3 : 2;
};

// A lane's part of kKeys keys, decoded.
template <int32_t kCodec, class Shape>
struct KeyParts {
  static constexpr bool kIsPolar = kCodec == PKV_CODEC_POLAR4;
  static constexpr int kRounds = Shape::kRounds;
  static constexpr int kKeys = Shape::kKeys;
  using Group = LaneGroup<Shape::kLanes>;

  uint32_t y[kIsPolar ? 1 : kKeys][kIsPolar ? 1 : 8 * kRounds];
  float level[kIsPolar ? kKeys : 1][kIsPolar ? 32 * kRounds : 1];
  float w[kKeys][kIsPolar ? 4 * kRounds : 1];  // scalar: in every lane

  PKV_DEVICE void load(const KeySlot (&keys)[kKeys]) {
    const gpu::Layout& layout = *keys[0].layout;
    Words<4> codes[kKeys][kRounds];
    uint32_t signs[kKeys][kRounds];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int chunk = Group::rank() + round * Shape::kLanes;
        codes[i][round] = {};
        signs[i][round] = 0;
        if (chunk >= layout.chunks) continue;
        codes[i][round] = load_words<4>(keys[i].record() + gpu::kChunkBytes * chunk);
        signs[i][round] = load_words<1>(keys[i].signs() + 4 * chunk).word[0];
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        decode(i, round, codes[i][round].word, signs[i][round]);
        if constexpr (kIsPolar) load_weights(keys[i], i, round);
      }
      if constexpr (kCodec == PKV_CODEC_SCALAR4) {
        const uint32_t word = Group::shuffle(codes[i][0].word[3], 0);
        w[i][0] = format::bf16_to_float(static_cast<uint16_t>(word));
      } else if constexpr (kCodec == PKV_CODEC_SCALAR5) {
        w[i][0] = format::bf16_to_float(*keys[i].weights());
      }
    }
  }

  // The lane's part of <key i, head>: an integer, of polar4 a float without the gain.
  // `head`: the words of a head, of polar4 its d floats.
  template <class Part>
  PKV_DEVICE void products(const uint32_t* head, int32_t chunks, int32_t d,
                           Part (&sum)[kKeys]) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) sum[i] = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int chunk = Group::rank() + round * Shape::kLanes;
      if (chunk >= chunks) continue;
      if constexpr (kIsPolar) {
        add_polar(round, head + 32 * chunk, d - 32 * chunk, sum);
      } else {
        add_scalar(round, head, chunk, chunks, sum);
      }
    }
  }

 private:
  PKV_DEVICE void decode(int i, int round, const uint32_t* m, uint32_t signs) {
    if constexpr (kIsPolar) {
      decode_polar(m, signs, level[i] + 32 * round);
    } else {
      decode_scalar<kCodec>(m, signs, y[i] + 8 * round);
    }
  }

  PKV_DEVICE void load_weights(const KeySlot& key, int i, int round) {
    const gpu::Layout& layout = *key.layout;
    const int first = 4 * (Group::rank() + round * Shape::kLanes);
    Words<2> words = {};
    if (first < layout.weights) words = load_words<2>(key.weights() + first);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      w[i][4 * round + b] =
          format::bf16_to_float(static_cast<uint16_t>(words.word[b / 2] >> (16 * (b % 2))));
    }
  }

  template <class Part>
  PKV_DEVICE void add_scalar(int round, const uint32_t* head, int chunk, int32_t chunks,
                             Part (&sum)[kKeys]) const {
    int32_t parts[kKeys][2] = {};
#pragma unroll
    for (int v = 0; v < kQueryVectors; ++v) {
      const Words<4> c = load_words<4>(head + (v * chunks + chunk) * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          parts[i][v / 2] = add_dot4(parts[i][v / 2], y[i][8 * round + 4 * (v % 2) + e], c.word[e]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) sum[i] += 256 * parts[i][0] + parts[i][1];
  }

  // `q`: what is left of a head from this chunk on, `count` floats.
  PKV_DEVICE void add_polar(int round, const uint32_t* q, int32_t count,
                            float (&sum)[kKeys]) const {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (8 * b >= count) continue;
      const Words<4> halves[2] = {load_words<4>(q + 8 * b), load_words<4>(q + 8 * b + 4)};
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        float product = 0.0F;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          product +=
              level[i][32 * round + 8 * b + j] * std::bit_cast<float>(halves[j / 4].word[j % 4]);
        }
        sum[i] += w[i][4 * round + b] * product;
      }
    }
  }
};

// The queries of one row: all heads, or a run of them that a block has staged.
struct RowEstimateQueries {
  const uint32_t* words;  // scalar: of head 0; polar4: the floats of q'
  int32_t head_words;     // from one head to the next
  const HeadTerms* terms;
  float gain;
};

// est_g of kKeys keys goes to put(i, g, est), by one lane of the group each; g < heads.
template <int32_t kCodec, class Shape, class Put>
PKV_DEVICE void estimate(const KeyParts<kCodec, Shape>& parts, const RowEstimateQueries& queries,
                         const gpu::Layout& layout, int32_t heads, const Put& put) {
  using Group = LaneGroup<Shape::kLanes>;
  constexpr bool kIsPolar = kCodec == PKV_CODEC_POLAR4;
  // A lane's part fits 32 bits, the sum of all up to d = 256 too.
  using Sum = std::conditional_t < Shape::kLanes<8, int32_t, int64_t>;
  for (int32_t g = 0; g < heads; ++g) {
    const uint32_t* head = queries.words + int64_t{g} * queries.head_words;
    const HeadTerms terms = queries.terms[g];
    std::conditional_t<kIsPolar, float, int32_t> mine[Shape::kKeys];
    parts.products(head, layout.chunks, 8 * layout.subspaces, mine);
#pragma unroll
    for (int i = 0; i < Shape::kKeys; ++i) {
      float e = 0.0F;
      if constexpr (kIsPolar) {
        e = Group::sum(mine[i]) / queries.gain + terms.bias;
      } else {
        const int64_t dot = 2 * int64_t{Group::sum(Sum{mine[i]})} + terms.sum;
        float rounded = 0.0F;
        if constexpr (Shape::kLanes < 8) {
          rounded = static_cast<float>(static_cast<int32_t>(dot));
        } else {
          rounded = static_cast<float>(dot);
        }
        e = fadd_rn(fmul_rn(fmul_rn(rounded, parts.w[i][0]), terms.unit), terms.bias);
      }
      if (Group::rank() == g % Shape::kLanes) put(i, g, limited(e));
    }
  }
}

}  // namespace PKV_GPU_NS
