// Single stages: every argument is checked by name before anything runs.
#include "core/codec/geometry.h"
#include "core/format/candidates.h"
#include "tests/unit/pipeline/stage_setup.h"

namespace pkv::test {

TEST_CASE("stage vote: arguments") {
  Setup s;
  static const int32_t far[2] = {0, INT32_MAX};
  static const int32_t negative[2] = {0, -1};
  static const int64_t long_row[2] = {41, 3};
  static const int64_t short_row[2] = {3, -1};
  const pkv_geometry odd = changed_geometry(s.index->geometry(), &pkv_geometry::head_dim, 12);
  using A = pkv_vote_args;
  check_changes<A>(
      s.machine, s.vote(), stage_vote_sync,
      {{[](A& a) { a.codec.geometry = nullptr; }, kInvalid, {"codec.geometry=NULL"}},
       {[&](A& a) { a.codec.geometry = &odd; }, kInvalid, {"head_dim=12"}},
       {[](A& a) { a.codec.center = nullptr; }, kInvalid, {"codec.center=NULL"}},
       {[](A& a) { a.codec.inv_balance = nullptr; }, kInvalid, {"codec.inv_balance=NULL"}},
       {[](A& a) { a.codec.signs_1 = nullptr; }, kInvalid, {"codec.signs_1=NULL"}},
       {[](A& a) { a.codec.value_center = nullptr; }, kInvalid, {"codec.value_center=NULL"}},
       {[](A& a) { a.query_heads = 5; }, kInvalid, {"query_heads=5", "kv_heads=2"}},
       {[](A& a) { a.vote_group = PKV_VOTE_GROUP_HEADS; }, kInvalid, {"vote_group=2"}},
       {[](A& a) { a.rho_of = 3; }, kInvalid, {"rho_of=3"}},
       {[](A& a) { a.batch.batch = -1; }, kInvalid, {"batch=-1"}},
       {[](A& a) { a.batch.lengths = nullptr; }, kInvalid, {"lengths=NULL"}},
       {[](A& a) { a.batch.sequences = nullptr; }, kInvalid, {"sequences=NULL"}},
       {[](A& a) { a.batch.sequences = negative; }, kOutside, {"sequences[1]=-1"}},
       {[](A& a) { a.batch.lengths = long_row; }, kOutside, {"lengths[0]=41", "0..40"}},
       {[](A& a) { a.batch.lengths = short_row; }, kOutside, {"lengths[1]=-1"}},
       {[](A& a) { a.batch.max_length = int64_t{1} << 31; }, kInvalid, {"max_length"}},
       {[](A& a) { a.votes_stride = 39; }, kInvalid, {"votes_stride=39", "40.."}},
       {[](A& a) { a.votes_stride = INT64_MAX / 8; }, kInvalid, {"votes"}},
       {[](A& a) { a.votes = nullptr; }, kInvalid, {"votes=NULL"}},
       {[](A& a) { a.occupancy = nullptr; }, kInvalid, {"occupancy=NULL"}},
       {[](A& a) { a.store.base = nullptr; }, kInvalid, {"store.base=NULL"}},
       {[](A& a) { a.store.base = static_cast<char*>(a.store.base) + 64; }, kInvalid, {"aligned"}},
       {[](A& a) { a.store.row_bytes += 256; }, kInvalid, {"store.row_bytes"}},
       {[](A& a) { a.store.capacity = 24; }, kInvalid, {"store.row_bytes", "capacity=24"}},
       {[](A& a) { a.queries.ndim = 2; }, kInvalid, {"queries", "ndim=2"}},
       {[](A& a) { a.queries.data = nullptr; }, kInvalid, {"queries", "NULL"}},
       {[](A& a) { a.queries.dtype = PKV_DTYPE_I32; }, kInvalid, {"queries", "i32"}}});
  // Far sequences are an overflow where a row is large enough.
  pkv_vote_args args = s.vote();
  args.batch.sequences = far;
  args.store.row_bytes = int64_t{1} << 40;
  CHECK(stage_vote_sync(s.machine.stream, args).code() == kInvalid);
}

TEST_CASE("stage select: arguments") {
  Setup s;
  using A = pkv_select_args;
  check_changes<A>(
      s.machine, s.select(), stage_select_sync,
      {{[](A& a) { a.kv_heads = 0; }, kInvalid, {"kv_heads=0"}},
       {[](A& a) { a.rule.k = -1; }, kInvalid, {"rule.k=-1", "0..65536"}},
       {[](A& a) { a.rule.steps = 0; }, kInvalid, {"rule.steps=0", "1..4"}},
       {[](A& a) { a.rule.steps = 5; }, kInvalid, {"rule.steps=5"}},
       {[](A& a) { a.rule.ppm[0] = 1000001; }, kInvalid, {"rule.ppm[0]=1000001"}},
       {[](A& a) { a.rule.ppm[0] = -1; }, kInvalid, {"rule.ppm[0]=-1"}},
       {[](A& a) { a.rule.below[0] = 7; }, kInvalid, {"rule.below[0]=7"}},
       {[](A& a) {
          a.rule = format::candidate_rule(format::kDefaultSchedule, 1);
          a.rule.below[1] = a.rule.below[0];
        },
        kInvalid,
        {"rule.below[1]=16384"}},
       {[](A& a) { a.votes = nullptr; }, kInvalid, {"votes=NULL"}},
       {[](A& a) { a.votes_stride = 30; }, kInvalid, {"votes_stride=30"}},
       {[](A& a) { a.candidates = nullptr; }, kInvalid, {"candidates=NULL"}},
       {[](A& a) { a.candidates_stride = 19; }, kInvalid, {"candidates_stride=19", "20.."}},
       {[](A& a) { a.candidate_counts = nullptr; }, kInvalid, {"candidate_counts=NULL"}},
       {[](A& a) { a.batch.lengths = nullptr; }, kInvalid, {"lengths=NULL"}}});
  pkv_select_args without = s.select();
  without.batch.sequences = nullptr;  // rows are all that select knows
  require_ok(stage_select_sync(s.machine.stream, without));
}

TEST_CASE("stage select: room for the longest row is not enough where a step drops") {
  const pkv_candidate_rule rule = format::candidate_rule(format::kDefaultSchedule, 10);
  CHECK(format::candidate_count(rule, 40000) == 800);
  CHECK(format::largest_candidate_count(rule, 40000) == 1639);
  CHECK(format::largest_candidate_count(rule, 32767) == 1639);
  CHECK(format::largest_candidate_count(rule, 20000) == 1639);  // of 16,383
  CHECK(format::largest_candidate_count(rule, 100) == 10);
  CHECK(format::largest_candidate_count(rule, 0) == 0);
}

TEST_CASE("stage rerank: arguments") {
  Setup s;
  std::vector<int32_t> good_counts = s.step->candidate_counts->values();
  static std::vector<int32_t> too_many(4, 1000), negative(4, -1);
  static std::vector<int32_t> descending, outside;
  descending = s.step->candidates->values();
  std::swap(descending[0], descending[1]);
  outside = s.step->candidates->values();
  const auto c = static_cast<std::size_t>(s.step->plan->candidates());
  outside[2 * c + static_cast<std::size_t>(good_counts[2]) - 1] = 25;  // sequence 1 holds 25
  using A = pkv_rerank_args;
  check_changes<A>(
      s.machine, s.rerank(), stage_rerank_sync,
      {{[](A& a) { a.rank = 0; }, kInvalid, {"rank=0"}},
       {[](A& a) { a.k = 65537; }, kInvalid, {"k=65537"}},
       {[](A& a) { a.weigh_norms = 1; }, kInvalid, {"weigh_norms=1", "0..0"}},
       {[](A& a) { a.scale = 0.0F; }, kInvalid, {"scale=0"}},
       {[](A& a) { a.scale = kNan; }, kInvalid, {"scale=nan"}},
       {[](A& a) { a.scale = 2e6F; }, kInvalid, {"scale=2e+06"}},
       {[](A& a) { a.share = 1.5; }, kInvalid, {"share=1.5"}},
       {[](A& a) { a.share = kNan; }, kInvalid, {"share=nan"}},
       {[](A& a) {
          a.share = 0.5;
          a.rank = PKV_RANK_MEAN;
        },
        kInvalid,
        {"rank with share"}},
       {[](A& a) {
          a.share = 0.5;
          a.k_min = 5;
        },
        kInvalid,
        {"k_min=5", "0..4"}},
       {[](A& a) { a.tail_samples = 0; }, kInvalid, {"tail_samples=0", "1..65536"}},
       {[](A& a) {
          a.tail_samples = 0;
          a.rest_lse = nullptr;
        },
        kInvalid,
        {"tail_samples=0"}},
       {[](A& a) {
          a.tail_samples = 65537;
          a.sample_estimates = nullptr;
        },
        kInvalid,
        {"tail_samples=65537"}},
       {[](A& a) { a.candidates = nullptr; }, kInvalid, {"candidates=NULL"}},
       {[](A& a) { a.candidate_counts = nullptr; }, kInvalid, {"candidate_counts=NULL"}},
       {[](A& a) { a.candidate_counts = too_many.data(); }, kOutside, {"candidate_counts[0]=1000"}},
       {[](A& a) { a.candidate_counts = negative.data(); }, kOutside, {"candidate_counts[0]=-1"}},
       {[](A& a) { a.candidates = descending.data(); },
        kOutside,
        {"candidates[0, 1]", "ascending"}},
       {[](A& a) { a.candidates = outside.data(); }, kOutside, {"=25", "24"}},
       {[](A& a) { a.candidates_stride = -1; }, kInvalid, {"candidates_stride=-1"}},
       {[](A& a) { a.positions = nullptr; }, kInvalid, {"positions=NULL"}},
       {[](A& a) { a.scores = nullptr; }, kInvalid, {"scores=NULL"}},
       {[](A& a) { a.counts = nullptr; }, kInvalid, {"counts=NULL"}},
       {[](A& a) { a.queries.ndim = 4; }, kInvalid, {"queries", "ndim=4"}},
       {[](A& a) { a.store.base = nullptr; }, kInvalid, {"store.base=NULL"}}});
}

TEST_CASE("stage fetch: arguments") {
  Setup s;
  static std::vector<int32_t> wrong;
  wrong = s.step->positions->values();
  wrong[3 * 4 + 1] = 25;
  using A = pkv_fetch_args;
  check_changes<A>(
      s.machine, s.fetch(), stage_fetch_sync,
      {{[](A& a) { a.kv_heads = 0; }, kInvalid, {"kv_heads=0"}},
       {[](A& a) { a.kv_heads = 1; }, kInvalid, {"source keys", "h"}},
       {[](A& a) { a.k = -1; }, kInvalid, {"k=-1"}},
       {[](A& a) { a.k = 3; }, kInvalid, {"rows keys", "k"}},
       {[](A& a) { a.positions = nullptr; }, kInvalid, {"positions=NULL"}},
       {[](A& a) { a.positions = wrong.data(); },
        kOutside,
        {"entry 1, KV head 1, slot 1", "=25", "0..24"}},
       {[](A& a) { a.keys.ndim = 0; }, kInvalid, {"keys", "both or none"}},
       {[](A& a) { a.values.dtype = PKV_DTYPE_BF16; }, kInvalid, {"rows values", "bf16", "f32"}},
       {[](A& a) { a.batch.sequences = nullptr; }, kInvalid, {"sequences=NULL"}}});
  pkv_fetch_args nothing = s.fetch();
  nothing.k = 0;
  nothing.positions = nullptr;
  nothing.source_keys.ndim = nothing.source_values.ndim = 0;
  nothing.keys.ndim = nothing.values.ndim = 0;
  require_ok(stage_fetch_sync(s.machine.stream, nothing));
}

TEST_CASE("stage attend: arguments") {
  Setup s;
  static const int64_t long_part[2] = {40, 41};
  static std::vector<int32_t> too_many(4, 5);
  static std::vector<int32_t> outside;
  outside = s.step->candidates->values();
  outside[0] = 40;
  using A = pkv_attend_args;
  check_changes<A>(
      s.machine, s.attend(), stage_attend_sync,
      {{[](A& a) { a.tail = 0; }, kInvalid, {"tail=0", "1..4"}},
       {[](A& a) { a.tail = 5; }, kInvalid, {"tail=5"}},
       {[](A& a) { a.tail_samples = 0; }, kInvalid, {"tail_samples=0", "1..65536"}},
       {[](A& a) {
          a.tail = PKV_TAIL_SAMPLED;
          a.tail_samples = 65537;
        },
        kInvalid,
        {"tail_samples=65537"}},
       {[](A& a) { a.sample_estimates = nullptr; }, kInvalid, {"sample_estimates=NULL"}},
       {[](A& a) {
          a.tail = PKV_TAIL_SAMPLED;
          a.sample_estimates = nullptr;
        },
        kInvalid,
        {"sample_estimates=NULL"}},
       {[](A& a) { a.part_count = 5; }, kInvalid, {"part_count=5", "0..4"}},
       {[](A& a) { a.part_count = 2; }, kInvalid, {"dense[1].keys", "ndim=0"}},
       {[](A& a) { a.parts[0].lengths = long_part; },
        kInvalid,
        {"dense[0].lengths[1]=41", "0..40"}},
       {[](A& a) { a.parts[0].values.ndim = 0; }, kInvalid, {"dense[0].values"}},
       {[](A& a) { a.k = 5; }, kInvalid, {"rows.keys"}},
       {[](A& a) { a.row_keys.ndim = 0; }, kInvalid, {"rows.keys"}},
       {[](A& a) { a.positions = nullptr; }, kInvalid, {"positions=NULL"}},
       {[](A& a) { a.counts = nullptr; }, kInvalid, {"counts=NULL"}},
       {[](A& a) { a.counts = too_many.data(); }, kOutside, {"counts[0]=5", "0..4"}},
       {[](A& a) { a.candidates = nullptr; }, kInvalid, {"candidates=NULL"}},
       {[](A& a) { a.candidates = outside.data(); }, kOutside, {"candidates[0, 0]=40"}},
       {[](A& a) { a.candidate_counts = nullptr; }, kInvalid, {"candidate_counts=NULL"}},
       {[](A& a) { a.estimates = nullptr; }, kInvalid, {"estimates=NULL"}},
       {[](A& a) { a.rest_lse = nullptr; }, kInvalid, {"rest_lse=NULL"}},
       {[](A& a) { a.value_sums = nullptr; }, kInvalid, {"value_sums=NULL"}},
       {[](A& a) { a.good_counts = nullptr; }, kInvalid, {"good_counts=NULL"}},
       {[](A& a) { a.store.base = nullptr; }, kInvalid, {"store.base=NULL"}},
       {[](A& a) { a.scale = -1.0F; }, kInvalid, {"scale=-1"}},
       {[](A& a) { a.output.ndim = 2; }, kInvalid, {"output", "ndim=2"}},
       {[](A& a) { a.output.dtype = PKV_DTYPE_U8; }, kInvalid, {"output", "u8"}}});
  pkv_attend_args mean = s.attend();
  mean.tail = PKV_TAIL_MEAN;
  mean.tail_samples = 0;
  mean.sample_estimates = nullptr;
  require_ok(stage_attend_sync(s.machine.stream, mean));
}

TEST_CASE("stage attend: each tail needs its sketch") {
  Setup sampled(Options{{"tail", "sampled"}});
  pkv_attend_args args = sampled.attend();
  require_ok(stage_attend_sync(sampled.machine.stream, args));
  args.tail = PKV_TAIL_SKETCH;
  check_refused(stage_attend_sync(sampled.machine.stream, args), kInvalid,
                {"sketch_stride with tail=3=16", "1..1"});
  Setup mean(Options{{"tail", "mean"}});
  for (const int32_t tail : {PKV_TAIL_SKETCH, PKV_TAIL_SAMPLED}) {
    args = mean.attend();
    args.tail = tail;
    check_refused(stage_attend_sync(mean.machine.stream, args), kInvalid, {"sketch_stride", "=0"});
  }
}

TEST_CASE("stage encode: arguments, and bytes equal to those of the index") {
  Setup s(Options{{"value_norm", "on"}});
  const pkv_geometry& g = s.index->geometry();
  const int64_t row_bytes = s.index->store().row_bytes;
  const auto store_memory =
      value_of(Buffer::create(s.machine.device, PKV_MEMORY_DEVICE, 4 * row_bytes));
  std::vector<int32_t> occupancy(4 * 2 * 256);
  std::vector<double> sums(4 * 8);
  std::vector<int64_t> good(4), first_bad(4, 99);
  const int64_t starts[2] = {0, 0};
  static const int64_t many[2] = {40, 41}, late[2] = {0, 40};
  static const int32_t twice[2] = {1, 1};
  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 2;
  args.codec = s.index->codec()->params();
  args.keys = s.zone.keys.tensor();
  args.values = s.zone.values.tensor();
  args.sequences = s.sequences;
  args.starts = starts;
  args.counts = s.lengths;
  args.store.base = store_memory.data();
  args.store.row_bytes = row_bytes;
  args.store.capacity = 64;
  args.occupancy = occupancy.data();
  args.value_sums = sums.data();
  args.good_counts = good.data();
  args.first_bad = first_bad.data();
  require_ok(stage_encode_sync(s.machine.stream, args));
  CHECK(good == std::vector<int64_t>{40, 40, 25, 25});
  CHECK(first_bad == std::vector<int64_t>(4, -1));
  CHECK(std::equal(occupancy.begin(), occupancy.end(), s.index->occupancy()));
  CHECK(std::equal(sums.begin(), sums.end(), s.index->value_sums()));
  CHECK(g.value_norm == 1);
  using A = pkv_encode_args;
  check_changes<A>(s.machine, args, stage_encode_sync,
                   {{[](A& a) { a.batch = -1; }, kInvalid, {"batch=-1"}},
                    {[](A& a) { a.keys.ndim = 3; }, kInvalid, {"keys", "ndim=3"}},
                    {[](A& a) {
                       a.values.ndim = 0;
                       a.value_sums = nullptr;
                     },
                     kInvalid,
                     {"without values"}},
                    {[](A& a) { a.value_sums = nullptr; }, kInvalid, {"value_sums=NULL"}},
                    {[](A& a) { a.occupancy = nullptr; }, kInvalid, {"occupancy=NULL"}},
                    {[](A& a) { a.good_counts = nullptr; }, kInvalid, {"good_counts=NULL"}},
                    {[](A& a) { a.sequences = nullptr; }, kInvalid, {"sequences=NULL"}},
                    {[](A& a) { a.sequences = twice; }, kInvalid, {"sequences: 1 occurs twice"}},
                    {[](A& a) { a.starts = nullptr; }, kInvalid, {"starts=NULL"}},
                    {[](A& a) { a.starts = late; }, kOutside, {"starts[1]=40", "0..39"}},
                    {[](A& a) { a.counts = nullptr; }, kInvalid, {"counts=NULL"}},
                    {[](A& a) { a.counts = many; }, kOutside, {"counts[1]=41", "0..40"}},
                    {[](A& a) { a.store.row_bytes = 0; }, kInvalid, {"store.row_bytes=0"}}});
}

TEST_CASE("stage fit: arguments") {
  Machine machine;
  const pkv_geometry g = value_of(config_of({{"head_dim", "8"}, {"tail", "mean"}}).geometry(2));
  Array keys({2, 10, 8}, 1.0F), queries({4, 5, 8}, 2.0F), values({2, 10, 8}, 3.0F);
  std::vector<float> pivot(16, 0.5F);
  std::vector<int64_t> key_counts(2), key_weights(2), query_counts(2);
  const std::vector<int32_t> weights(20, 3);
  std::vector<int32_t> negative = weights;
  negative[7] = -1;
  std::vector<double> key_sums(16), key_squares(16), query_squares(16), value_sums(16);
  pkv_fit_args args{};
  args.struct_size = sizeof args;
  args.queries_as = PKV_FIT_QUERIES_HEADS;
  args.geometry = &g;
  args.keys = keys.tensor();
  args.queries = queries.tensor();
  args.values = values.tensor();
  args.pivot = pivot.data();
  args.key_counts = key_counts.data();
  args.key_weights = key_weights.data();
  args.key_sums = key_sums.data();
  args.key_squares = key_squares.data();
  args.query_counts = query_counts.data();
  args.query_squares = query_squares.data();
  args.value_sums = value_sums.data();
  require_ok(stage_fit_sync(machine.stream, args));
  CHECK(key_counts == std::vector<int64_t>{10, 10});
  CHECK(key_sums == std::vector<double>(16, 5.0));
  CHECK(key_weights == key_counts);
  CHECK(query_counts == std::vector<int64_t>{10, 10});
  CHECK(value_sums == std::vector<double>(16, 30.0));
  using A = pkv_fit_args;
  check_changes<A>(
      machine, args, stage_fit_sync,
      {{[](A& a) { a.geometry = nullptr; }, kInvalid, {"geometry=NULL"}},
       {[](A& a) { a.pivot = nullptr; }, kInvalid, {"pivot=NULL"}},
       {[](A& a) { a.key_counts = nullptr; }, kInvalid, {"key_counts=NULL"}},
       {[](A& a) { a.key_weights = nullptr; }, kInvalid, {"key_weights=NULL"}},
       {[&](A& a) { a.weights = negative.data(); }, kInvalid, {"weights[7]=-1", "0.."}},
       {[](A& a) { a.queries_as = 0; }, kInvalid, {"queries_as=0", "1..2"}},
       {[](A& a) { a.queries_as = 3; }, kInvalid, {"queries_as=3"}},
       {[](A& a) { a.key_sums = nullptr; }, kInvalid, {"key_sums=NULL"}},
       {[](A& a) { a.key_squares = nullptr; }, kInvalid, {"key_squares=NULL"}},
       {[](A& a) { a.query_counts = nullptr; }, kInvalid, {"query_counts=NULL"}},
       {[](A& a) { a.query_squares = nullptr; }, kInvalid, {"query_squares=NULL"}},
       {[](A& a) { a.values.ndim = 0; }, kInvalid, {"value_sums", "without values"}},
       {[](A& a) { a.keys.ndim = 0; }, kInvalid, {"keys", "ndim=0"}},
       {[](A& a) { a.queries.dtype = PKV_DTYPE_I64; }, kInvalid, {"queries", "i64"}}});
  args.weights = weights.data();
  args.queries_as = PKV_FIT_QUERIES_SUM;
  require_ok(stage_fit_sync(machine.stream, args));
  CHECK(key_counts == std::vector<int64_t>{10, 10});
  CHECK(key_weights == std::vector<int64_t>{30, 30});
  CHECK(key_sums == std::vector<double>(16, 15.0));
  CHECK(query_counts == std::vector<int64_t>{5, 5});
  CHECK(query_squares == std::vector<double>(16, 80.0));
  CHECK(value_sums == std::vector<double>(16, 30.0));
}

}  // namespace pkv::test
