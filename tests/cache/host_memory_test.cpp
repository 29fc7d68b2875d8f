// Host memory that a device reads: staged by callers whose stream is far behind, and asked about
// before anything is made of it. On gpu-host with memory of its own (PKV_CACHE_PLUGIN,
// PKV_GPU_HOST_APART=1): only such a device appends without a wait.
#include <cmath>
#include <cstdlib>
#include <string>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

Shape waiting_shape() {
  Shape shape;
  shape.options = {{"k", "12"}, {"tail", "mean"}};
  shape.deferred = 1;
  shape.capacity = 20000;
  return shape;
}

// As memory that the device's vendor has pinned.
pkv_tensor pinned(const Tensor& tensor) {
  pkv_tensor view = tensor.view();
  view.device_type = PKV_DEVICE_CUDA_HOST;
  return view;
}

// What an engine gathers rows in: one piece of memory, filled in the stream's order.
struct Staging {
  Staging(const Shape& shape, int64_t rows)
      : keys(shape.dtype, {rows, shape.kv_heads, shape.head_dim}),
        values(shape.dtype, {rows, shape.kv_heads, shape.value_dim}),
        queries(shape.query_dtype, {rows, shape.query_heads, shape.head_dim}) {
    for (Tensor* tensor : {&keys, &values, &queries}) tensor->fill(NAN);
  }
  // `from` stays until the stream is there.
  void fill(pkv_stream* stream, const Staging& from) {
    for (const auto& [to, source] : {std::pair(&keys, &from.keys), std::pair(&values, &from.values),
                                     std::pair(&queries, &from.queries)}) {
      check(pkv_device_copy(stream, to->at(0), source->bytes().data(),
                            static_cast<int64_t>(source->bytes().size())));
    }
  }
  bool is_untouched() const {
    return std::isnan(keys.get(0)) && std::isnan(values.get(0)) && std::isnan(queries.get(0));
  }

  Tensor keys, values, queries;
};

Staging block_of(const World& world, const std::vector<uint64_t>& tokens) {
  Staging block(world.shape(), static_cast<int64_t>(tokens.size()));
  block.keys = world.content().keys(tokens, 0);
  block.values = world.content().values(tokens, 0);
  block.queries = world.content().queries(tokens, 0);
  return block;
}

pkv_status append(World& world, const Batch& batch, const Staging& from) {
  const pkv_tensor k = pinned(from.keys), v = pinned(from.values), q = pinned(from.queries);
  return pkv_cache_append(world.cache(), world.stream(), 0, &batch.c, &k, &v, &q);
}

void stall(const World& world) {
  REQUIRE(std::getenv("PKV_GPU_HOST_APART") != nullptr);
  check(pkv_device_set(world.machine().device.get(), "streams", "deferred"));
}

TEST_CASE("host memory: rows that the stream writes are appended as written, with no wait") {
  Shape shape = waiting_shape();
  shape.policies = {{PKV_CACHE_DENSE, 0}};
  Machine machine("gpu-host");
  World world(machine, shape);
  stall(world);
  const int32_t sequence = world.add();
  constexpr int64_t kRounds = 150, kRows = 64, kTokens = kRounds * kRows;
  check(pkv_cache_reserve(world.cache(), world.stream(), kTokens, kTokens, 1));
  Staging staging(shape, kRows);
  std::vector<Staging> sources;
  for (uint64_t round = 0; round < kRounds; ++round) {
    sources.push_back(block_of(world, tokens_from(round * kRows, kRows)));
  }
  for (const Staging& source : sources) {
    staging.fill(world.stream(), source);
    check(append(world, Batch(Parts{{sequence, std::vector<uint64_t>(kRows)}}), staging));
  }
  CHECK(staging.is_untouched());  // nothing has run
  check(pkv_stream_sync(world.stream()));
  REQUIRE(world.length(0, sequence) == kTokens);
  const std::vector<uint64_t> all = tokens_from(0, kTokens);
  const Tensor keys(shape.dtype, {shape.kv_heads, kTokens, shape.head_dim});
  const Tensor values(shape.dtype, {shape.kv_heads, kTokens, shape.value_dim});
  auto rows = filled<pkv_rows, pkv_rows_init>();
  rows.keys = keys.view();
  rows.values = values.view();
  check(pkv_cache_rows_sync(world.cache(), world.stream(), 0, sequence, 0, kTokens, &rows));
  CHECK(keys.bytes() == world.content().head_keys(all, 0).bytes());
  CHECK(values.bytes() == world.content().head_values(all, 0).bytes());
}

TEST_CASE("host memory: three appends behind a stalled stream share one staging area") {
  const Shape shape = waiting_shape();
  Machine machine("gpu-host");
  World world(machine, shape), fresh(machine, shape);
  stall(world);
  const int32_t a = world.add(), b = world.add();
  check(pkv_cache_reserve(world.cache(), world.stream(), 400, 800, 2));
  constexpr int64_t kRows = 90;
  Staging staging(shape, kRows);
  // The arrays of a call are lent for it alone: one batch for all of them, written again at once.
  Batch batch(Parts{{a, {0}}, {b, {0}}});
  std::vector<Staging> sources;
  std::vector<std::vector<uint64_t>> held(2);
  for (const int64_t first : {20, 50, 80}) {  // rows of a; the others are b's
    const std::vector<uint64_t> tokens = tokens_from(1000 * static_cast<uint64_t>(first), kRows);
    held[0].insert(held[0].end(), tokens.begin(), tokens.begin() + first);
    held[1].insert(held[1].end(), tokens.begin() + first, tokens.end());
    sources.push_back(block_of(world, tokens));
  }
  for (std::size_t block = 0; block < sources.size(); ++block) {
    const int64_t first = 20 + 30 * static_cast<int64_t>(block);
    staging.fill(world.stream(), sources[block]);
    batch.sequences = {a, b};
    batch.counts = {first, kRows - first};
    check(append(world, batch, staging));
    batch.sequences = {-1, -1};
    batch.counts = {-1, -1};
  }
  CHECK(staging.is_untouched());  // nothing has run, kept queries included
  check(pkv_stream_sync(world.stream()));
  CHECK(staging.keys.bytes() == sources.back().keys.bytes());
  for (const std::vector<uint64_t>& tokens : held) {
    const Staging source = block_of(fresh, tokens);
    check(append(fresh, Batch(Parts{{fresh.add(), tokens}}), source));
    check(pkv_stream_sync(fresh.stream()));
  }
  world.flush();  // fits ask for the kept queries
  fresh.flush();
  for (const int32_t sequence : {a, b}) {
    CAPTURE(sequence);
    REQUIRE(world.regions(0, sequence).is_encoded == 1);
    CHECK(world.content_of(0, sequence) == fresh.content_of(0, sequence));
  }
}

TEST_CASE("host memory: a device whose kernels do not read it is refused when it is opened") {
  const char* plugin = std::getenv("PKV_CACHE_PLUGIN");
  REQUIRE(plugin != nullptr);
  std::string log;
  auto options = filled<pkv_runtime_options, pkv_runtime_options_init>();
  options.log = [](void* user, int32_t level, const char* text) {
    if (level <= 1) *static_cast<std::string*>(user) += text;
  };
  options.log_user = &log;
  Runtime runtime(&options);
  const std::string name = runtime.backend(runtime.load(plugin)).name;
  for (const char* attribute : {"UnifiedAddressing", "CanMapHostMemory"}) {
    REQUIRE(setenv("PKV_GPU_HOST_LACKS", attribute, 1) == 0);
    pkv_device* device = nullptr;
    check_refused(pkv_device_open(runtime.get(), name.c_str(), 0, &device), PKV_UNAVAILABLE,
                  {"gpuDevAttr", attribute, "=0", "host memory", "backend cpu"});
    CHECK(device == nullptr);
    const Device other(runtime, "cpu");
  }
  // A device that does not read registered memory: the library's own is allocated, and callers are
  // told about theirs.
  REQUIRE(setenv("PKV_GPU_HOST_LACKS", "CanUseHostPointerForRegisteredMem", 1) == 0);
  log.clear();
  { const Device device(runtime, name.c_str()); }
  CHECK(log.find("gpuDevAttrCanUseHostPointerForRegisteredMem=0") != std::string::npos);
  CHECK(log.find("pkv_device_alloc") != std::string::npos);
  Machine machine("gpu-host");
  REQUIRE(unsetenv("PKV_GPU_HOST_LACKS") == 0);
  const Shape shape = waiting_shape();
  World world(machine, shape);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> tokens = tokens_from(1, 120);
  const Staging source = block_of(world, tokens);
  check(append(world, Batch(Parts{{sequence, tokens}}), source));
  world.flush();
  Found found(shape, world.k(), 1, world.candidates(120));
  pkv_cache_hits hits = found.view();
  const Batch batch(Parts{{sequence, {5000}}});
  const Tensor queries = world.content().queries(std::vector<uint64_t>{5000}, 0);
  const pkv_tensor query = pinned(queries);
  check(pkv_cache_retrieve(world.cache(), world.stream(), 0, &batch.c, &query, &hits));
  const Tensor keys(shape.dtype, {1, shape.kv_heads, world.k(), shape.head_dim});
  const Tensor values(shape.dtype, {1, shape.kv_heads, world.k(), shape.value_dim});
  auto rows = filled<pkv_rows, pkv_rows_init>();
  rows.keys = pinned(keys);
  rows.values = pinned(values);
  check(pkv_cache_fetch(world.cache(), world.stream(), 0, &batch.c, &hits, &rows));
  check(pkv_stream_sync(world.stream()));
  REQUIRE(found.counts[0] == world.k());
  for (int32_t hit = 0; hit < found.counts[0]; ++hit) {
    const int64_t position = shape.sink + found.positions[static_cast<std::size_t>(hit)];
    const std::vector<float> key =
        world.content().key(tokens[static_cast<std::size_t>(position)], 0, 0);
    for (int32_t i = 0; i < shape.head_dim; ++i) {
      CHECK(keys.get(hit * shape.head_dim + i) == key[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace
}  // namespace pkv::cache_model
