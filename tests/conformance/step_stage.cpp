#include "tests/conformance/step_stage.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

// Calls that make objects refuse with UNIMPLEMENTED what the backend lacks.
void require_or_skip(const char* function, pkv_status status) {
  if (status == PKV_UNIMPLEMENTED) throw Skip(error_text(function, status));
  require(function, status);
}

const char* tail_name(const World& world, int32_t tail) {
  switch (tail) {
    case PKV_TAIL_DROP: return "drop";
    case PKV_TAIL_MEAN: return "mean";
    case PKV_TAIL_SAMPLED: return "sampled";
    default: return world.setup().sketch_bits == 2 ? "sketch2" : "sketch4";
  }
}

// K or V of one sequence in host memory, [h, t, width].
struct HostTensor {
  int64_t shape[3];
  int64_t strides[3];
  pkv_tensor tensor;

  HostTensor(const Place& place, const Dense& all, int64_t tokens, std::byte* memory,
             int64_t head_stride, int64_t token_stride, int32_t sequence)
      : shape{all.shape[1], tokens, all.shape[3]}, strides{head_stride, token_stride, 1}, tensor{} {
    tensor.data = memory;
    tensor.device_type = place.host_type();
    tensor.device_id = place.device_id();
    tensor.ndim = 3;
    tensor.dtype = all.dtype;
    tensor.shape = shape;
    tensor.strides = strides;
    const int64_t bytes = dtype_bytes(all.dtype);
    for (int64_t head = 0; head < shape[0]; ++head) {
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t from = ((sequence * shape[0] + head) * all.shape[2] + t) * shape[2] * bytes;
        std::memcpy(memory + (head * head_stride + t * token_stride) * bytes,
                    all.bytes.data() + from, static_cast<size_t>(shape[2] * bytes));
      }
    }
  }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;
};

// Tokens [begin, end) of one sequence, [h, t, width].
Tensor sequence_tokens(const Dense& all, int32_t sequence, int64_t begin, int64_t end,
                       Layout layout) {
  Dense tokens = slice_tokens(take(all, {sequence}), begin, end);
  tokens.shape.erase(tokens.shape.begin());
  return lay_out(tokens, layout);
}

}  // namespace

Step::Step(const Place& place, const World& world, const StepOptions& options, float scale)
    : place_(place), world_(world), options_(options) {
  configure(world, options, scale);
  import_codec(world);
  pkv_index* index = nullptr;
  require_or_skip("pkv_index_create",
                  pkv_index_create(place.device(), codec_.get(), world.sequences(),
                                   world.setup().n + 3, &index));
  index_.reset(index);
  append(world);
  make_plan(world);
}

void Step::configure(const World& world, const StepOptions& options, float scale) {
  pkv_config* config = nullptr;
  require("pkv_config_create", pkv_config_create(options.profile, &config));
  config_.reset(config);
  const Setup& s = world.setup();
  const pkv_geometry& g = world.codec().geometry;
  std::vector<std::pair<std::string, std::string>> set = {
      {"head_dim", fmt::format("{}", g.head_dim)},
      {"v_source", s.v_source == PKV_V_SOURCE_K_PREFIX ? "k_prefix" : "own"},
      {"value_dim", fmt::format("{}", g.value_dim)},
      {"codec", codec_name(g.codec)},
      {"vote", vote_name(g.vote)},
      {"center", "on"},
      {"balance", "on"},
      {"rounds", fmt::format("{}", g.rounds)},
      {"seed", fmt::format("{}", g.seed)},
      {"value_norm", g.value_norm != 0 ? "on" : "off"},
      {"tail", tail_name(world, options.tail)},
      {"k", fmt::format("{}", options.k)},
      {"scale", fmt::format("{:.9g}", scale)},
      {"nonfinite", "isolate"}};
  if (options.tail != PKV_TAIL_DROP) {
    set.emplace_back("tail_samples", fmt::format("{}", options.tail_samples));
  }
  set.insert(set.end(), options.set.begin(), options.set.end());
  for (const auto& [name, value] : set) {
    require("pkv_config_set", pkv_config_set(config, name.c_str(), value.c_str()));
  }
}

void Step::import_codec(const World& world) {
  const Codec& source = world.codec();
  pkv_codec_data data = {};
  require("pkv_codec_data_init", pkv_codec_data_init(&data, sizeof data));
  data.kv_heads = source.heads();
  data.center = source.center.data();
  data.balance = source.balance.data();
  data.value_center = source.value_center.empty() ? nullptr : source.value_center.data();
  pkv_codec* codec = nullptr;
  require_or_skip("pkv_codec_import",
                  pkv_codec_import(place_.device(), config_.get(), &data, &codec));
  codec_.reset(codec);
}

void Step::append(const World& world) const {
  for (size_t i = 0; i < world.batch().sequences.size(); ++i) {
    const int32_t sequence = world.batch().sequences[i];
    const int64_t n = world.batch().lengths[i];
    for (const auto& [begin, end] : {std::pair(int64_t{0}, n / 3), std::pair(n / 3, n)}) {
      if (begin == end) continue;
      Session session(place_, kFills[0]);
      const Tensor keys = sequence_tokens(world.keys(), sequence, begin, end, world.setup().layout);
      const Tensor values =
          sequence_tokens(*world.values(), sequence, begin, end, world.setup().layout);
      const pkv_tensor key_view = session.in("keys", keys);
      const pkv_tensor value_view = session.in("values", values);
      session.finish(
          "pkv_index_append_sync",
          pkv_index_append_sync(index_.get(), place_.stream(), sequence, &key_view, &value_view));
    }
  }
}

void Step::make_plan(const World& world) {
  pkv_plan_desc desc = {};
  require("pkv_plan_desc_init", pkv_plan_desc_init(&desc, sizeof desc));
  desc.batch = world.setup().b;
  desc.query_heads = world.setup().hq();
  desc.sequences = world.batch().sequences.data();
  pkv_plan* plan = nullptr;
  require_or_skip("pkv_plan_create", pkv_plan_create(index_.get(), config_.get(), &desc, &plan));
  plan_.reset(plan);
  require("pkv_plan_candidates", pkv_plan_candidates(plan, &stride_));
}

void Step::refill(const World& world) const {
  for (int32_t sequence = 0; sequence < world.sequences(); ++sequence) {
    require("pkv_index_reset", pkv_index_reset(index_.get(), place_.stream(), sequence));
  }
  append(world);
}

void Step::refill_from_host(const World& world, HostRows rows) const {
  const int64_t h = world.setup().h;
  const int64_t d = world.keys().shape[3];
  const int64_t dv = world.values()->shape[3];
  const int64_t bytes = dtype_bytes(world.keys().dtype);
  for (size_t i = 0; i < world.batch().sequences.size(); ++i) {
    const int32_t sequence = world.batch().sequences[i];
    const int64_t n = world.batch().lengths[i];
    require("pkv_index_reset", pkv_index_reset(index_.get(), place_.stream(), sequence));
    if (n == 0) continue;
    void* data = nullptr;
    require("pkv_device_alloc",
            pkv_device_alloc(place_.device(), PKV_ALLOC_HOST, h * n * (d + dv) * bytes, &data));
    auto* memory = static_cast<std::byte*>(data);
    const bool is_token_major = rows == HostRows::kTokenMajor;
    const auto put = [&](const Dense& all, std::byte* at, int64_t width) {
      return HostTensor(place_, all, n, at, is_token_major ? width : n * width,
                        is_token_major ? h * width : width, sequence);
    };
    const bool is_apart = rows != HostRows::kSideBySide;
    const HostTensor keys =
        is_apart ? put(world.keys(), memory, d) : put(world.keys(), memory, d + dv);
    const HostTensor values = is_apart ? put(*world.values(), memory + h * n * d * bytes, dv)
                                       : put(*world.values(), memory + d * bytes, d + dv);
    const pkv_status status = pkv_index_append_sync(index_.get(), place_.stream(), sequence,
                                                    &keys.tensor, &values.tensor);
    require("pkv_device_free", pkv_device_free(place_.device(), data));
    require("pkv_index_append_sync from host memory", status);
  }
}

void Step::keep_rows(int32_t rows) {
  pkv_row_cache* cache = nullptr;
  require("pkv_row_cache_create",
          pkv_row_cache_create(index_.get(), place_.stream(), world_.setup().dtype, rows, &cache));
  row_cache_.reset(cache);
}

pkv_row_cache_stats Step::row_cache_stats() const {
  pkv_row_cache_stats stats = {};
  require("pkv_row_cache_stats_init", pkv_row_cache_stats_init(&stats, sizeof stats));
  require("pkv_row_cache_stats_sync",
          pkv_row_cache_stats_sync(row_cache_.get(), place_.stream(), &stats));
  return stats;
}

std::vector<Records> Step::records() const {
  const pkv_geometry& geometry = world_.codec().geometry;
  std::vector<Records> rows;
  for (int32_t sequence = 0; sequence < world_.sequences(); ++sequence) {
    int64_t n = 0;
    require("pkv_index_length", pkv_index_length(index_.get(), sequence, &n));
    for (int32_t head = 0; head < world_.setup().h; ++head) {
      Records row = blank_records(geometry, 0, n, 0);
      const auto bytes = [&](int p) {
        return row.planes[p].empty() ? nullptr : row.planes[p].data();
      };
      const auto numbers = [&](int p) { return reinterpret_cast<uint16_t*>(bytes(p)); };
      pkv_records planes = {};
      planes.struct_size = sizeof planes;
      planes.signs = bytes(0);
      planes.vote_factors = numbers(1);
      planes.codes = bytes(2);
      planes.factors = numbers(3);
      planes.value_signs = bytes(4);
      planes.value_codes = bytes(5);
      planes.value_factors = numbers(6);
      planes.value_norms = numbers(7);
      require("pkv_index_export_sync",
              pkv_index_export_sync(index_.get(), place_.stream(), sequence, head, 0, n, &planes));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace pkv::conformance
