#include <climits>
#include <cstddef>

#include "pariskv/pariskv_stages.h"
#include "tests/abi/memory_test.h"

namespace {

constexpr int kRows = kHeads;  // one sequence
constexpr int kCandidates = 16;

template <class Args>
Args sized() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

// What a codec is made of; of two heads.
struct Codec {
  std::vector<float> center = std::vector<float>(kHeads * kDim);
  std::vector<float> balance = std::vector<float>(kHeads * kDim, 1.0F);
  std::vector<float> inv_balance = balance;
  std::vector<float> value_center = center;
  std::vector<float> signs = std::vector<float>(4 * kDim);

  explicit Codec(const pkv_geometry& geometry) {
    for (int32_t i = 0; i < 4; ++i) {
      exhaust("sign_vector",
              [&] { return pkv_sign_vector(geometry.seed, i + 1, kDim, signs.data() + i * kDim); });
    }
  }

  pkv_codec_params params(const pkv_geometry& geometry) const {
    pkv_codec_params p{};
    p.geometry = &geometry;
    p.center = center.data();
    p.balance = balance.data();
    p.inv_balance = inv_balance.data();
    p.signs_1 = signs.data();
    p.signs_2 = signs.data() + kDim;
    p.value_center = value_center.data();
    p.value_signs_1 = signs.data() + 2 * kDim;
    p.value_signs_2 = signs.data() + 3 * kDim;
    return p;
  }
};

void test_fit(pkv_device* device, pkv_stream* stream, const pkv_geometry& geometry, Codec& codec) {
  std::vector<float> key_data = noise(kHeads * kTokens * kDim);
  const std::vector<int64_t> shape = {kHeads, kTokens, kDim};
  const std::vector<float> pivot(kHeads * kDim);
  std::vector<int64_t> counts(3 * kHeads);
  std::vector<double> sums(4 * kHeads * kDim);
  auto args = sized<pkv_fit_args>();
  args.queries_as = PKV_FIT_QUERIES_HEADS;
  args.geometry = &geometry;
  args.keys = args.queries = args.values = view(key_data, shape);
  args.pivot = pivot.data();
  args.key_counts = counts.data();
  args.key_weights = counts.data() + kHeads;
  args.query_counts = counts.data() + 2 * kHeads;
  args.key_sums = sums.data();
  args.key_squares = sums.data() + kHeads * kDim;
  args.query_squares = sums.data() + 2 * kHeads * kDim;
  args.value_sums = sums.data() + 3 * kHeads * kDim;
  exhaust("stage_fit_sync", [&] { return pkv_stage_fit_sync(device, stream, &args); });
  exhaust("fit_params", [&] {
    return pkv_fit_params(&args, 1, 1, codec.center.data(), codec.balance.data(),
                          codec.inv_balance.data(), codec.value_center.data());
  });
}

}  // namespace

void test_stages(pkv_device* device, pkv_stream* stream, const pkv_geometry& geometry) {
  Codec codec(geometry);
  test_fit(device, stream, geometry, codec);

  auto store = pkv_store{};
  store.capacity = kTokens;
  exhaust("store_row_bytes",
          [&] { return pkv_store_row_bytes(device, &geometry, kTokens, &store.row_bytes); });
  pkv_device_alloc(device, PKV_ALLOC_DEVICE, kRows * store.row_bytes, &store.base);

  std::vector<float> data = noise(kHeads * kTokens * kDim);
  const std::vector<int64_t> key_shape = {1, kHeads, kTokens, kDim};
  const std::vector<int64_t> query_shape = {1, kHeads, kDim};
  const std::vector<int64_t> row_shape = {1, kHeads, kK, kDim};
  const int32_t sequence = 0;
  const int64_t start = 0;
  const int64_t length = kTokens;
  std::vector<double> value_sums(kRows * kDim);
  std::vector<int64_t> good_counts(kRows);
  auto encode = sized<pkv_encode_args>();
  encode.batch = 1;
  encode.codec = codec.params(geometry);
  encode.keys = encode.values = view(data, key_shape);
  encode.sequences = &sequence;
  encode.starts = &start;
  encode.counts = &length;
  encode.store = store;
  encode.value_sums = value_sums.data();
  encode.good_counts = good_counts.data();
  exhaust("stage_encode_sync", [&] { return pkv_stage_encode_sync(device, stream, &encode); });

  pkv_batch batch{};
  batch.batch = 1;
  batch.sequences = &sequence;
  batch.lengths = &length;
  batch.max_length = kTokens;
  std::vector<float> votes(kRows * kTokens);
  auto vote = sized<pkv_vote_args>();
  vote.query_heads = kHeads;
  vote.vote_group = PKV_VOTE_GROUP_SUM;
  vote.rho_of = PKV_RHO_OF_KEYS;
  vote.codec = encode.codec;
  vote.batch = batch;
  vote.queries = view(data, query_shape);
  vote.store = store;
  vote.votes = votes.data();
  vote.votes_stride = kTokens;
  exhaust("stage_vote_sync", [&] { return pkv_stage_vote_sync(device, stream, &vote); });

  std::vector<int32_t> candidates(kRows * kCandidates);
  std::vector<int32_t> candidate_counts(kRows);
  auto select = sized<pkv_select_args>();
  select.kv_heads = kHeads;
  select.batch = batch;
  select.rule.below[0] = INT64_MAX;
  select.rule.ppm[0] = 1000000 * kCandidates / kTokens;
  select.rule.k = kK;
  select.rule.steps = 1;
  select.votes = votes.data();
  select.votes_stride = kTokens;
  select.candidates = candidates.data();
  select.candidates_stride = kCandidates;
  select.candidate_counts = candidate_counts.data();
  exhaust("stage_select_sync", [&] { return pkv_stage_select_sync(device, stream, &select); });
  int64_t count = 0;
  exhaust("candidate_count", [&] { return pkv_candidate_count(&select.rule, kTokens, &count); });

  std::vector<int32_t> positions(kRows * kK);
  std::vector<float> scores(kRows * kK);
  std::vector<int32_t> counts(kRows);
  std::vector<float> estimates(kRows * kCandidates);
  std::vector<float> rest(kRows);
  std::vector<float> samples(kRows * kSamples);
  auto rerank = sized<pkv_rerank_args>();
  rerank.query_heads = kHeads;
  rerank.rank = PKV_RANK_GROUP;
  rerank.k = kK;
  rerank.tail_samples = kSamples;
  rerank.scale = 0.1F;
  rerank.codec = encode.codec;
  rerank.batch = batch;
  rerank.queries = vote.queries;
  rerank.store = store;
  rerank.candidates = candidates.data();
  rerank.candidates_stride = kCandidates;
  rerank.candidate_counts = candidate_counts.data();
  rerank.positions = positions.data();
  rerank.scores = scores.data();
  rerank.counts = counts.data();
  rerank.estimates = estimates.data();
  rerank.rest_lse = rest.data();
  rerank.sample_estimates = samples.data();
  exhaust("stage_rerank_sync", [&] { return pkv_stage_rerank_sync(device, stream, &rerank); });

  std::vector<float> row_data(kRows * kK * kDim);
  auto fetch = sized<pkv_fetch_args>();
  fetch.kv_heads = kHeads;
  fetch.batch = batch;
  fetch.source_keys = fetch.source_values = encode.keys;
  fetch.positions = positions.data();
  fetch.k = kK;
  fetch.keys = view(row_data, row_shape);
  std::vector<float> value_data(kRows * kK * kDim);
  fetch.values = view(value_data, row_shape);
  exhaust("stage_fetch_sync", [&] { return pkv_stage_fetch_sync(device, stream, &fetch); });

  std::vector<float> output(kRows * kDim);
  auto attend = sized<pkv_attend_args>();
  attend.query_heads = kHeads;
  attend.tail = PKV_TAIL_SAMPLED;
  attend.part_count = 1;
  attend.scale = rerank.scale;
  attend.k = kK;
  attend.tail_samples = kSamples;
  attend.codec = encode.codec;
  attend.batch = batch;
  attend.queries = vote.queries;
  attend.parts[0].keys = attend.parts[0].values = encode.keys;
  attend.row_keys = fetch.keys;
  attend.row_values = fetch.values;
  attend.positions = positions.data();
  attend.counts = counts.data();
  attend.candidates = candidates.data();
  attend.candidates_stride = kCandidates;
  attend.candidate_counts = candidate_counts.data();
  attend.estimates = estimates.data();
  attend.rest_lse = rest.data();
  attend.sample_estimates = samples.data();
  attend.value_sums = value_sums.data();
  attend.good_counts = good_counts.data();
  attend.store = store;
  attend.output = view(output, query_shape);
  exhaust("stage_attend_sync", [&] { return pkv_stage_attend_sync(device, stream, &attend); });

  std::vector<uint16_t> plane(kTokens * kDim);  // as in memory_test.cpp
  auto records = sized<pkv_records>();
  records.row_tokens = kTokens;
  records.signs = records.codes = reinterpret_cast<uint8_t*>(plane.data());
  records.value_signs = records.value_codes = records.signs;
  records.vote_factors = records.factors = records.value_factors = plane.data();
  exhaust("store_export_sync", [&] {
    return pkv_store_export_sync(device, stream, &geometry, &store, 0, 0, kTokens, &records);
  });
  exhaust("store_import_sync", [&] {
    return pkv_store_import_sync(device, stream, &geometry, &store, 1, 0, kTokens, &records);
  });
  pkv_device_free(device, store.base);
}
