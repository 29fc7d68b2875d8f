// Prints what the exact stages of cpu_ref make of awkward numbers, one digest per line, so that
// builds by different compilers can be compared. Links cpu_ref and nothing else of ours.
//   driver        prints to stdout
//   driver DIR    also writes the lines to DIR/rotation.bin and DIR/codes.bin
// Inputs come from integers alone: no library function decides a bit.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "tests/unit/cpu_ref/oracle.h"

namespace {

using namespace pkv;
using test::Oracle;
using test::Tensor;

constexpr int64_t kKeys = 96;
constexpr int32_t kQueryHeads = 3;

// FNV-1a, 64 bits.
class Digest {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      hash_ = (hash_ ^ static_cast<const uint8_t*>(data)[i]) * UINT64_C(0x100000001b3);
    }
  }
  template <class Value>
  void add(const std::vector<Value>& values) {
    add(values.data(), values.size() * sizeof(Value));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = UINT64_C(0xcbf29ce484222325);
};

// Key number t of a kind that is hard somewhere: ties, subnormals, huge and tiny numbers, zeros of
// both signs, values that are not finite.
void fill_key(int64_t t, test::Random& random, float* key, int32_t d) {
  for (int32_t j = 0; j < d; ++j) {
    const float x = random.bell();
    switch (t % 12) {
      case 0: key[j] = x; break;
      case 1: key[j] = 1.0F; break;
      case 2: key[j] = j % 2 == 0 ? 0.0F : -0.0F; break;
      case 3: key[j] = x * 1e-40F; break;
      case 4: key[j] = x * 1e-22F; break;
      case 5: key[j] = x * 1e17F; break;
      case 6: key[j] = x * 1e37F; break;
      case 7: key[j] = j == t % d ? 3.0F : 0.0F; break;
      case 8: key[j] = static_cast<float>(static_cast<int32_t>(x * 2.0F)); break;
      case 9: key[j] = j == 5 ? test::kNan : x; break;
      case 10: key[j] = j == 1 ? -test::kInf : x; break;
      default: key[j] = x * (j % 3 == 0 ? 1e-3F : 1e3F); break;
    }
  }
}

uint64_t rotation_digest(int32_t d, int32_t rounds) {
  const auto signs_1 = test::sign_vector(d, 1, d);
  const auto signs_2 = test::sign_vector(d, 2, d);
  const cpu_ref::Rotation rotation = {d, format::rotation_plan(d, rounds), signs_1.data(),
                                      signs_2.data()};
  test::Random random(static_cast<uint32_t>(d));
  Digest digest;
  std::vector<float> x(static_cast<size_t>(d));
  for (int64_t t = 0; t < kKeys; ++t) {
    fill_key(t, random, x.data(), d);
    cpu_ref::rotate(rotation, x.data());
    // Which NaN an operation gives is not specified, only that it is one.
    for (float& y : x) y = std::isnan(y) ? test::kNan : y;
    digest.add(x);
  }
  return digest.value();
}

// Records, votes, candidates, estimates of one geometry.
uint64_t codes_digest(const pkv_geometry& geometry) {
  const int32_t d = geometry.head_dim;
  const int32_t dv = geometry.value_dim;
  Oracle oracle(geometry, kKeys);
  test::Random random(static_cast<uint32_t>(d * 31 + geometry.codec));
  for (int32_t j = 0; j < d; ++j) {
    oracle.center[static_cast<size_t>(j)] = j % 4 == 0 ? 0.0F : random.uniform();
    oracle.balance[static_cast<size_t>(j)] = 1.0F + 0.75F * random.uniform();
  }
  for (int32_t j = 0; j < dv; ++j) {
    oracle.value_center[static_cast<size_t>(j)] = 0.5F * random.uniform();
  }
  Tensor keys({1, 1, kKeys, d});
  Tensor values({1, 1, kKeys, dv});
  for (int64_t t = 0; t < kKeys; ++t) {
    fill_key(t, random, keys.row(0, 0, t), d);
    fill_key(t % 8, random, values.row(0, 0, t), dv);
  }

  Digest digest;
  digest.add(oracle.encode(keys, values));
  for (int64_t t = 0; t < kKeys; ++t) {
    const Oracle::Record record = oracle.record(0, t);
    for (const auto* plane :
         {&record.signs, &record.codes, &record.value_signs, &record.value_codes}) {
      digest.add(*plane);
    }
    digest.add(record.factors);
    for (const uint16_t factor : {record.vote_factor, record.value_factor, record.value_norm}) {
      digest.add(&factor, sizeof factor);
    }
  }
  digest.add(oracle.value_sums);
  digest.add(oracle.good_counts);
  digest.add(oracle.occupancy);

  const std::vector<int64_t> lengths = {kKeys};
  Tensor queries = Tensor::random({1, kQueryHeads, d}, 99);
  const bool is_graded = geometry.vote == PKV_VOTE_GRADED;
  const auto votes = oracle.vote(queries, lengths);
  digest.add(votes);
  digest.add(oracle.vote(queries, lengths, is_graded ? PKV_VOTE_GROUP_HEADS : PKV_VOTE_GROUP_SUM,
                         PKV_RHO_OF_CENTROIDS));
  const auto candidates = oracle.select(votes, lengths, format::candidate_rule(400000, 10));
  digest.add(candidates.positions);
  if (geometry.codec != PKV_CODEC_POLAR4) {  // those estimates are in the bounded class
    pkv_rerank_args args = oracle.rerank_args(queries, lengths, candidates, 20);
    args.rank = PKV_RANK_MEAN;
    args.tail_samples = 50;
    std::vector<float> estimates(static_cast<size_t>(kQueryHeads * candidates.stride));
    std::vector<float> samples(static_cast<size_t>(kQueryHeads * args.tail_samples));
    args.estimates = estimates.data();
    args.sample_estimates = samples.data();
    const test::Hits hits = oracle.rerank(args, /*with_tail=*/false);
    digest.add(estimates);
    digest.add(samples);
    digest.add(hits.positions);
    digest.add(hits.scores);
  }
  return digest.value();
}

struct Output {
  std::vector<std::string> lines;
  void add(uint64_t digest, const std::string& what) {
    char hex[32];
    std::snprintf(hex, sizeof hex, "%016llx ", static_cast<unsigned long long>(digest));
    lines.push_back(hex + what);
    std::puts(lines.back().c_str());
  }
  bool write(const std::string& path) const {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return false;
    for (const std::string& line : lines) std::fprintf(file, "%s\n", line.c_str());
    return std::fclose(file) == 0;
  }
};

int run(const char* folder) {
  Output rotation;
  Output codes;
  for (int32_t d = format::kMinHeadDim; d <= format::kMaxHeadDim; d += 8) {
    const int32_t most_rounds = format::rotation_plan(d, 1).is_power_of_two ? 2 : 1;
    for (int32_t rounds = 1; rounds <= most_rounds; ++rounds) {
      const std::string name = "d=" + std::to_string(d) + " rounds=" + std::to_string(rounds);
      rotation.add(rotation_digest(d, rounds), "rotation " + name);
      for (int32_t codec = PKV_CODEC_POLAR4; codec <= PKV_CODEC_SCALAR5; ++codec) {
        // Neighbouring dims take turns with the other options.
        const int32_t vote = d / 8 % 2 == 0 ? PKV_VOTE_GRADED : PKV_VOTE_TIER;
        pkv_geometry geometry = test::geometry_of(d, 584 - d, codec, vote);
        geometry.rounds = rounds;
        geometry.sketch_bits = d / 16 % 2 == 0 ? 2 : 4;
        geometry.sketch_stride = d / 32 % 2 == 0 ? 1 : 5;
        geometry.value_norm = 1;
        codes.add(codes_digest(geometry), "codes " + name + " codec=" + std::to_string(codec));
      }
    }
  }
  if (folder == nullptr) return 0;
  const std::string base = folder;
  return rotation.write(base + "/rotation.bin") && codes.write(base + "/codes.bin") ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver: %s\n", error.what());
    return 1;
  }
}
