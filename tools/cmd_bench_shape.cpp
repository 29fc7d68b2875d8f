#include "tools/cmd_bench_shape.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/cmd_bench_cache.h"
#include "tools/element.h"
#include "tools/step.h"
#include "tools/step_work.h"
#include "tools/votes.h"

namespace pkv::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMaxLayers = 6;
constexpr int64_t kMaxDeviceLayers = 28;                   // of a model of middle size
constexpr int64_t kDeviceCacheBytes = int64_t{128} << 20;  // more than devices have today
constexpr double kMemoryShare = 0.9;                       // of what is available

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::StatusOr<int64_t> config_integer(const pkv_config* config, const char* name) {
  CLI_ASSIGN_OR_RETURN(const std::string text, config_value(config, name));
  return parse_integer(name, text, 0, INT64_MAX);
}

absl::StatusOr<bool> is_one_of(const pkv_config* config, const char* name,
                               std::initializer_list<std::string_view> texts) {
  CLI_ASSIGN_OR_RETURN(const std::string text, config_value(config, name));
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

absl::StatusOr<Index> create_index(const Engine& engine, const pkv_codec* codec, int64_t capacity) {
  pkv_index* index = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_index_create(engine.device(), codec, 1, capacity, &index), About::kOptions));
  return Index(index);
}

// C of a row: the library's schedules are its own, so it is asked to retrieve from n equal keys of
// the smallest width.
absl::StatusOr<int64_t> count_candidates(const Engine& engine, const BenchOptions& options,
                                         int64_t n) {
  constexpr int64_t kDim = 8;
  constexpr int64_t kPiece = 65536;
  OptionValues values = options.values();
  values["head_dim"] = std::to_string(kDim);
  values["tail"] = "drop";
  CLI_ASSIGN_OR_RETURN(const Config config, make_config(options.config.profile(), values));
  CLI_ASSIGN_OR_RETURN(const Codec codec, import_codec(engine, config.get(), 1, kDim));
  CLI_ASSIGN_OR_RETURN(const Index index, create_index(engine, codec.get(), n));
  const int64_t bytes = std::min(n, kPiece) * kDim * int64_t{sizeof(float)};
  CLI_ASSIGN_OR_RETURN(const Memory zeros, Memory::create(engine, PKV_ALLOC_HOST, bytes));
  std::memset(zeros.data(), 0, static_cast<size_t>(bytes));
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t shape[] = {1, std::min(kPiece, n - begin), kDim};
    const pkv_tensor keys = engine.tensor(PKV_ALLOC_HOST, zeros.data(), PKV_DTYPE_F32, shape);
    CLI_RETURN_IF_ERROR(from_library(
        pkv_index_append_sync(index.get(), engine.stream(), 0, &keys, nullptr), About::kOptions));
  }
  CLI_ASSIGN_OR_RETURN(const Plan plan,
                       create_plan(index.get(), config.get(), 1, 0, About::kOptions));
  CLI_ASSIGN_OR_RETURN(const HitSizes sizes, hit_sizes(plan.get(), config.get(), 1, 1));
  CLI_ASSIGN_OR_RETURN(const auto hits, Hits::create(engine, sizes));
  const int64_t shape[] = {1, 1, kDim};
  const pkv_tensor query = engine.tensor(PKV_ALLOC_HOST, zeros.data(), PKV_DTYPE_F32, shape);
  CLI_RETURN_IF_ERROR(from_library(
      pkv_retrieve(plan.get(), engine.stream(), &query, nullptr, &hits->hits()), About::kOptions));
  CLI_RETURN_IF_ERROR(engine.sync());
  CLI_RETURN_IF_ERROR(hits->download());
  return static_cast<int64_t>(hits->candidates(0).size());
}

// A rule of one share that keeps `wanted` of n.
absl::StatusOr<pkv_candidate_rule> rule_of(int64_t n, int64_t k, int64_t wanted) {
  pkv_candidate_rule rule = {};
  rule.below[0] = INT64_MAX;
  rule.k = static_cast<int32_t>(k);
  rule.steps = 1;
  if (wanted > std::min(k, n)) {
    rule.ppm[0] = static_cast<int64_t>(static_cast<double>(wanted) * 1e6 / static_cast<double>(n));
  }
  int64_t count = 0;
  do {
    CLI_RETURN_IF_ERROR(from_library(pkv_candidate_count(&rule, n, &count), About::kOptions));
  } while (count < wanted && ++rule.ppm[0] <= 1000000);
  return rule;
}

absl::Status set_options(const BenchOptions& options, const pkv_config* config, BenchShape& shape) {
  CLI_ASSIGN_OR_RETURN(shape.k, config_integer(config, "k"));
  CLI_ASSIGN_OR_RETURN(shape.samples, config_integer(config, "tail_samples"));
  CLI_ASSIGN_OR_RETURN(shape.tail_name, config_value(config, "tail"));
  CLI_ASSIGN_OR_RETURN(const std::string rank, config_value(config, "rank"));
  CLI_ASSIGN_OR_RETURN(const VoteChoice vote, vote_choice(config));
  shape.tail = tail_number(shape.tail_name);
  shape.has_values = shape.tail != PKV_TAIL_DROP;
  shape.rank = rank == "mean" ? PKV_RANK_MEAN : PKV_RANK_GROUP;
  shape.vote_group = vote.vote_group;
  shape.rho_of = vote.rho_of;
  shape.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  if (!options.config.has("candidates")) return absl::OkStatus();
  CLI_ASSIGN_OR_RETURN(const std::string share, config_value(config, "candidates"));
  if (share == "auto") return absl::OkStatus();
  CLI_ASSIGN_OR_RETURN(shape.candidate_share, parse_real("candidates", share, 0, 1));
  return absl::OkStatus();
}

absl::Status set_memory(const Engine& engine, const BenchOptions& options, BenchShape& shape,
                        int64_t& device_bytes) {
  const char* text = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_device_describe(engine.device(), &text), About::kBackend));
  const auto about = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!about.is_object()) return system_error("pkv_device_describe: not a JSON object: {}", text);
  shape.is_cpu = about.value("device_type", "") == "cpu";
  shape.cache_bytes = shape.is_cpu ? cache_bytes() : kDeviceCacheBytes;
  shape.calls = options.calls > 0 ? options.calls : shape.is_cpu ? 1 : kBenchDeviceCalls;
  shape.zone_kind = options.rows == "device" ? PKV_ALLOC_DEVICE : PKV_ALLOC_HOST;
  device_bytes = shape.is_cpu ? available_bytes() : about.value("memory_bytes", int64_t{0});
  if (options.rows == "device" && shape.is_cpu) {
    return usage_error("--rows=device: {} has no memory of its own; accepted is host",
                       engine.backend());
  }
  return absl::OkStatus();
}

// As many layers as make what they touch larger than the caches, within bounds. K and V share
// memory between layers where it does not do.
void set_layers(const BenchOptions& options, int64_t device_bytes, BenchShape& shape) {
  shape.zone_tokens = shape.n;
  if (options.is_warm) return;
  const int64_t zone_bytes = shape.zone_kind == PKV_ALLOC_DEVICE ? device_bytes : available_bytes();
  const auto room = [&](int64_t bytes) { return std::min(options.memory * kGiB, bytes / 4); };
  const int64_t record = shape.sizes.total + shape.sizes.sketch;
  const int64_t by_cache = up(shape.cache_bytes * 5 / 4, shape.bytes(BenchStage::kVote)) + 1;
  const int64_t by_memory = room(device_bytes) / (shape.rows() * shape.capacity * record);
  const int64_t by_runs = options.repeat * shape.calls + 1;
  shape.layers = std::clamp<int64_t>(std::min({by_cache, by_memory, by_runs}), 2,
                                     shape.is_cpu ? kMaxLayers : kMaxDeviceLayers);
  const int64_t tokens = room(zone_bytes) / (2 * shape.rows() * shape.row_bytes);
  shape.layer_shift = std::clamp<int64_t>((tokens - shape.n) / (shape.layers - 1), 1, shape.n);
  shape.zone_tokens += (shape.layers - 1) * shape.layer_shift;
}

absl::Status check_room(const BenchOptions& options, int64_t n, const char* memory, double needed,
                        int64_t available) {
  if (needed <= kMemoryShare * static_cast<double>(available)) return absl::OkStatus();
  constexpr double kMiB = 1 << 20;
  return system_error(
      "--n={} with --batch={}, --kv-heads={}, --head-dim={}, --dtype={}: needs {:.0f} MiB of {}, "
      "{:.0f} MiB are available",
      n, options.batch, options.kv_heads, options.head_dim, options.dtype_name, needed / kMiB,
      memory, static_cast<double>(available) / kMiB);
}

// Records twice, for stages and for steps. In double, so that no product of sizes overflows.
absl::Status check_memory(const BenchOptions& options, const BenchShape& shape,
                          int64_t device_bytes, int64_t n, double record_bytes) {
  const double rows = static_cast<double>(options.batch) * static_cast<double>(options.kv_heads);
  const double queries =
      static_cast<double>(options.batch) * static_cast<double>(options.query_heads);
  const double dim = std::stod(options.head_dim);
  const double row_bytes = dim * static_cast<double>(dtype_bytes(options.dtype));
  const double dense = static_cast<double>(kBenchDense[0] + kBenchDense[1]);
  const double tokens = rows * static_cast<double>(n);
  const int least_layers = options.is_warm ? 1 : 2;
  const double zone = tokens * 2 * row_bytes;
  const double rest = least_layers * tokens * (2 * record_bytes + 4) +
                      least_layers * rows * dense * 2 * row_bytes + queries * dim * 8;
  if (shape.is_cpu) {
    const double sweep = options.is_warm ? 0 : 1.25 * static_cast<double>(cache_bytes());
    return check_room(options, n, "memory", zone + rest + sweep, device_bytes);
  }
  if (shape.zone_kind == PKV_ALLOC_DEVICE) {
    return check_room(options, n, "device memory", zone + rest, device_bytes);
  }
  CLI_RETURN_IF_ERROR(check_room(options, n, "host memory", zone, available_bytes()));
  return check_room(options, n, "device memory", rest, device_bytes);
}

}  // namespace

int64_t BenchShape::bytes(BenchStage stage) const {
  const StepWork work =
      work_of({batch, kv_heads, query_heads, n, k, candidates, samples, tail,
               tail_name == "sketch4", 2 * row_bytes, kBenchDense[0] + kBenchDense[1], sizes});
  switch (stage) {
    case BenchStage::kEncode: return rows() * n * (has_values ? 2 : 1) * row_bytes;
    case BenchStage::kRead:
    case BenchStage::kVote: return work.vote_bytes;
    case BenchStage::kSelect: return rows() * n * int64_t{sizeof(float)};
    case BenchStage::kRerank: return work.record_bytes;
    case BenchStage::kFetch: return work.fetched_bytes;
    case BenchStage::kAttend: return work.fetched_bytes + work.dense_bytes + work.sketch_bytes;
    case BenchStage::kStep: return work.bytes() + work.dense_bytes;
    case BenchStage::kFullAttention: return work.dense_bytes + work.zone_bytes;
  }
  return 0;
}

absl::StatusOr<Codec> import_codec(const Engine& engine, const pkv_config* config, int64_t kv_heads,
                                   int64_t dim, int64_t value_dim) {
  CLI_ASSIGN_OR_RETURN(const bool has_center, is_one_of(config, "center", {"on"}));
  CLI_ASSIGN_OR_RETURN(const bool has_sketch,
                       is_one_of(config, "tail", {"sampled", "sketch2", "sketch4"}));
  std::vector<float> center(static_cast<size_t>(kv_heads * dim), 0.0F);
  if (has_center) {
    for (size_t i = 0; i < center.size(); ++i) center[i] = 0.01F * static_cast<float>(i % 16);
  }
  const std::vector<float> balance(center.size(), 1.0F);
  std::vector<float> value_center = center;
  if (value_dim > 0) value_center.resize(static_cast<size_t>(kv_heads * value_dim));
  pkv_codec_data data;
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&data, sizeof data), About::kOptions));
  data.kv_heads = static_cast<int32_t>(kv_heads);
  data.center = center.data();
  data.balance = balance.data();
  if (has_sketch) data.value_center = value_center.data();
  pkv_codec* codec = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_codec_import(engine.device(), config, &data, &codec), About::kOptions));
  return Codec(codec);
}

absl::StatusOr<BenchSetup> setup_bench(const Engine& engine, const BenchOptions& options,
                                       int64_t n) {
  BenchSetup setup;
  BenchShape& shape = setup.shape;
  CLI_ASSIGN_OR_RETURN(setup.config, make_config(options.config.profile(), options.values()));
  int64_t device_bytes = 0;
  CLI_RETURN_IF_ERROR(set_memory(engine, options, shape, device_bytes));
  CLI_RETURN_IF_ERROR(check_memory(options, shape, device_bytes, n, 0));
  shape.n = n;
  shape.batch = options.batch;
  shape.kv_heads = options.kv_heads;
  shape.query_heads = options.query_heads;
  CLI_ASSIGN_OR_RETURN(shape.dim, parse_integer("head-dim", options.head_dim, 0, INT32_MAX));
  shape.dtype = options.dtype;
  shape.row_cache = options.row_cache;
  shape.drift = options.drift;
  shape.row_bytes = shape.dim * dtype_bytes(options.dtype);
  shape.capacity = std::max({n, kBenchDense[0], kBenchDense[1]});
  CLI_RETURN_IF_ERROR(set_options(options, setup.config.get(), shape));
  CLI_ASSIGN_OR_RETURN(setup.codec,
                       import_codec(engine, setup.config.get(), shape.kv_heads, shape.dim));
  CLI_RETURN_IF_ERROR(
      from_library(pkv_geometry_init(&shape.geometry, sizeof shape.geometry), About::kOptions));
  CLI_RETURN_IF_ERROR(
      from_library(pkv_codec_geometry(setup.codec.get(), &shape.geometry), About::kOptions));
  CLI_ASSIGN_OR_RETURN(shape.sizes, record_sizes(setup.codec.get()));
  CLI_RETURN_IF_ERROR(
      check_memory(options, shape, device_bytes, n, shape.sizes.total + shape.sizes.sketch));
  CLI_ASSIGN_OR_RETURN(shape.candidates, count_candidates(engine, options, n));
  CLI_ASSIGN_OR_RETURN(shape.rule, rule_of(n, shape.k, shape.candidates));
  if (shape.candidate_share == 0) {
    shape.candidate_share = static_cast<double>(shape.candidates) / static_cast<double>(n);
  }
  set_layers(options, device_bytes, shape);
  return setup;
}

}  // namespace pkv::cli
