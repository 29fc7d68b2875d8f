// A cache whose tables lie on the device: captured steps, flushes on a stream of their own, nothing
// that waits. On gpu-host, whose device captures when it is told to (backends/gpu/host/work.h);
// PKV_CACHE_PLUGIN names it.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

// Without kept queries, of which captured steps have none.
Shape captured_shape() {
  Shape shape;
  shape.options = {{"k", "12"}, {"tail", "mean"}};
  shape.layers = 3;
  shape.policies = {{PKV_CACHE_SPARSE, 0}, {PKV_CACHE_DENSE, 0}, {PKV_CACHE_WINDOW, 33}};
  shape.sequences = 4;
  shape.fit_positions = 0;
  shape.deferred = 1;
  return shape;
}

void set(Machine& machine, const char* name, const char* value) {
  check(pkv_device_set(machine.device.get(), name, value));
}

pkv_status advance(World& world, int32_t layer, const Parts& parts) {
  const Batch batch(parts);
  return pkv_cache_advance(world.cache(), world.stream(), layer, &batch.c);
}

// One token for each of some sequences, in every layer: captured once, launched with what the
// tensors hold then.
class CapturedStep {
 public:
  CapturedStep(World& world, std::vector<int32_t> sequences)
      : world_(world), sequences_(std::move(sequences)) {
    const Shape& shape = world.shape();
    const auto n = static_cast<int64_t>(sequences_.size());
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      keys_.emplace_back(shape.dtype, std::vector<int64_t>{n, shape.kv_heads, shape.head_dim});
      values_.emplace_back(shape.dtype, std::vector<int64_t>{n, shape.kv_heads, shape.value_dim});
      queries_.emplace_back(shape.query_dtype,
                            std::vector<int64_t>{n, shape.query_heads, shape.head_dim});
      outputs_.emplace_back(shape.output_dtype,
                            std::vector<int64_t>{n, shape.query_heads, shape.value_dim});
      lses_.emplace_back(static_cast<std::size_t>(n * shape.query_heads));
    }
  }

  // The status of the first layer that refuses.
  pkv_status capture() {
    set(world_.machine(), "graph", "capture");
    pkv_status status = PKV_OK;
    const Batch batch(parts({}));
    for (std::size_t layer = 0; layer < keys_.size() && status == PKV_OK; ++layer) {
      auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
      attention.query = queries_[layer].view();
      attention.output = outputs_[layer].view();
      attention.lse = lses_[layer].data();
      const pkv_tensor k = keys_[layer].view(), v = values_[layer].view();
      status = pkv_cache_decode_step(world_.cache(), world_.stream(), static_cast<int32_t>(layer),
                                     &batch.c, &k, &v, &attention);
    }
    text_ = status == PKV_OK ? "" : pkv_last_error();
    set(world_.machine(), "graph", "end");
    return status;
  }
  const std::string& text() const { return text_; }

  Parts parts(const std::vector<uint64_t>& tokens) const {
    Parts parts;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      parts.push_back({sequences_[i], {tokens.empty() ? 0 : tokens[i]}});
    }
    return parts;
  }

  // One token of each sequence.
  void launch(const std::vector<uint64_t>& tokens) {
    for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
      const auto number = static_cast<int32_t>(layer);
      keys_[layer].set(0, world_.content().keys(tokens, number).numbers());
      values_[layer].set(0, world_.content().values(tokens, number).numbers());
      queries_[layer].set(0, world_.content().queries(tokens, number).numbers());
    }
    set(world_.machine(), "graph", "launch");
    check(pkv_stream_sync(world_.stream()));
  }
  std::vector<float> output(int32_t layer) const {
    return outputs_[static_cast<std::size_t>(layer)].numbers();
  }
  const std::vector<float>& lse(int32_t layer) const {
    return lses_[static_cast<std::size_t>(layer)];
  }

 private:
  World& world_;
  std::vector<int32_t> sequences_;
  std::vector<Tensor> keys_, values_, queries_, outputs_;
  std::vector<std::vector<float>> lses_;
  std::string text_;
};

TEST_CASE("device: one captured step serves sequences that grow, flushed between its launches") {
  REQUIRE(std::getenv("PKV_CACHE_PLUGIN") != nullptr);
  const Shape shape = captured_shape();
  Machine machine("gpu-host"), other("gpu-host");
  World world(machine, shape), plain(other, shape);
  std::vector<int32_t> sequences;
  for (const int64_t count : {150, 3, 61}) {
    sequences.push_back(world.add());
    REQUIRE(plain.add() == sequences.back());
    world.append_all(sequences.back(), tokens_from(1000, count));
    plain.append_all(sequences.back(), tokens_from(1000, count));
  }
  check(pkv_cache_reserve(world.cache(), world.stream(), 400, 900, 3));
  CapturedStep step(world, sequences);
  REQUIRE_MESSAGE(step.capture() == PKV_OK, step.text());
  CHECK(world.length(0, sequences[0]) == 150);
  const pkv_cache_stats before = world.stats();
  for (uint64_t t = 0; t < 120; ++t) {
    CAPTURE(t);
    if (t % 13 == 0) {
      world.flush();
      plain.flush();
    }
    const std::vector<uint64_t> tokens = {2000 + t, 3000 + t, 4000 + t};
    check(advance(world, -1, step.parts(tokens)));
    step.launch(tokens);
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      CAPTURE(layer);
      Attended attended;
      check(plain.decode_step(layer, step.parts(tokens), 0, attended));
      check_near(shape.output_dtype, step.output(layer), attended.output);
      check_near(PKV_DTYPE_F32, step.lse(layer), attended.lse);
    }
  }
  CHECK(world.stats().allocated_bytes == before.allocated_bytes);
  CHECK(world.stats().appended == plain.stats().appended);
  world.flush();
  plain.flush();
  REQUIRE(world.regions(0, sequences[0]).is_encoded == 1);
  REQUIRE(world.regions(0, sequences[2]).is_encoded == 1);
  for (const int32_t sequence : sequences) check_same(world, sequence, plain, sequence);
}

TEST_CASE("device: plain calls go on beside captured ones") {
  const Shape shape = captured_shape();
  Machine machine("gpu-host");
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 100));
  check(pkv_cache_reserve(world.cache(), world.stream(), 200, 400, 2));
  CapturedStep step(world, {sequence});
  REQUIRE_MESSAGE(step.capture() == PKV_OK, step.text());
  std::vector<uint64_t> tokens = tokens_from(1, 100);
  for (uint64_t t = 0; t < 20; ++t) {
    tokens.push_back(5000 + t);
    if (t % 3 == 0) {
      world.append_all(sequence, {tokens.back()});
      continue;
    }
    check(advance(world, -1, {{sequence, {0}}}));
    step.launch({tokens.back()});
    if (t == 10) {  // two tokens are taken back
      tokens.resize(tokens.size() - 2);
      world.truncate(sequence, static_cast<int64_t>(tokens.size()));
      world.flush();
    }
  }
  const int32_t copy = world.fork(sequence, -1);
  check(advance(world, -1, {{sequence, {0}}}));
  step.launch({7000});
  World fresh(machine, shape);
  const int32_t other = fresh.add();
  fresh.append_all(other, tokens);
  fresh.flush();
  world.flush();
  check_same(world, copy, fresh, other);
  fresh.append_all(other, {7000});
  fresh.flush();
  check_same(world, sequence, fresh, other);
}

TEST_CASE("device: what cannot be captured is refused, and nothing is enqueued") {
  Shape shape = captured_shape();
  Machine machine("gpu-host");
  {
    World world(machine, shape);
    const int32_t sequence = world.add();
    world.append_all(sequence, tokens_from(1, 10));
    CapturedStep step(world, {sequence});
    CHECK(step.capture() == PKV_FAILED_PRECONDITION);
    CHECK(step.text().find("1 tokens, accepted: up to 0") != std::string::npos);
    set(machine, "graph", "capture");
    check_refused(pkv_cache_flush(world.cache(), world.stream()), PKV_FAILED_PRECONDITION,
                  {"captured", "decode_step"});
    check_refused(pkv_cache_truncate(world.cache(), world.stream(), sequence, 3),
                  PKV_FAILED_PRECONDITION, {"captured"});
    set(machine, "graph", "end");
    check_equals_fresh(world, sequence, tokens_from(1, 10));
  }
  shape.deferred = 0;
  World world(machine, shape);
  const int32_t sequence = world.add();
  check(pkv_cache_reserve(world.cache(), world.stream(), 100, 100, 1));
  CapturedStep step(world, {sequence});
  CHECK(step.capture() == PKV_FAILED_PRECONDITION);
  CHECK(step.text().find("deferred=1") != std::string::npos);
}

TEST_CASE("device: a captured call gets the scratch there is, not what earlier ones still hold") {
  const Shape shape = captured_shape();
  Machine machine("gpu-host");
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 120));
  check(pkv_cache_reserve(world.cache(), world.stream(), 200, 400, 2));
  CapturedStep step(world, {sequence});
  REQUIRE_MESSAGE(step.capture() == PKV_OK, step.text());  // what it uses stays from now on
  const Parts parts = {{sequence, {77}}};
  const Batch batch(parts);
  const Tensor queries = world.content().queries(parts[0].tokens, 0);
  const pkv_tensor query = queries.view();
  const auto retrieve = [&](Found& found) {
    pkv_cache_hits hits = found.view();
    return pkv_cache_retrieve(world.cache(), world.stream(), 0, &batch.c, &query, &hits);
  };
  const int64_t before = world.usage().scratch;
  Found wide(shape, world.k(), 1, 40000);
  check(retrieve(wide));  // new memory, beside the old
  check(pkv_stream_sync(world.stream()));
  const int64_t grown = world.usage().scratch;
  REQUIRE(grown > 2 * before);
  set(machine, "graph", "capture");
  // Fits into old and new together, but not into the new.
  Found wider(shape, world.k(), 1, 40000 + before / 64);
  check_refused(retrieve(wider), PKV_FAILED_PRECONDITION,
                {"a captured step needs", "pkv_cache_reserve"});
  set(machine, "graph", "end");
  CHECK(world.usage().scratch == grown);
}

TEST_CASE("device: a launch beyond what was counted appends nothing, and says so once") {
  const Shape shape = captured_shape();
  Machine machine("gpu-host");
  World world(machine, shape);
  const int32_t sequence = world.add(), next = world.add();
  world.append_all(sequence, tokens_from(1, 64));
  world.append_all(next, tokens_from(1, 5));
  check(pkv_cache_reserve(world.cache(), world.stream(), 120, 200, 2));
  CapturedStep step(world, {sequence, next});
  REQUIRE(step.capture() == PKV_OK);
  check(advance(world, -1, step.parts({})));
  step.launch({500, 600});
  step.launch({501, 601});  // not announced
  CHECK(step.output(0) == std::vector<float>(step.output(0).size(), 0.0F));
  int64_t tokens = 0;
  check_refused(advance(world, -1, step.parts({})), PKV_RESOURCE_EXHAUSTED,
                {"sequence 0", "66 tokens", "room for 65"});
  check(pkv_cache_length(world.cache(), 0, sequence, &tokens));
  CHECK(tokens == 65);
  check(advance(world, -1, step.parts({})));
  step.launch({501, 601});
  check_equals_fresh(world, next, {1, 2, 3, 4, 5, 600, 601});

  // Past the dense tail of captured steps (4 + 16 + 64 + 2 * 16 tokens), then past the reserve.
  const auto announce = [&] {
    pkv_status status = PKV_OK;
    for (tokens = world.length(0, sequence); status == PKV_OK; ++tokens) {
      status = advance(world, -1, {{sequence, {0}}});
    }
    return status;
  };
  check_refused(announce(), PKV_FAILED_PRECONDITION, {"113", "up to 112", "pkv_cache_flush"});
  CHECK(world.length(0, sequence) == 116);
  world.flush();
  check_refused(announce(), PKV_RESOURCE_EXHAUSTED, {"needs 121", "room for 120"});
  CHECK(world.length(0, sequence) == 120);
}

TEST_CASE("device: a store that cannot be had leaves no error behind") {
  Shape shape = captured_shape();
  shape.deferred = 0;
  Machine machine("gpu-host");
  World world(machine, shape), other(machine, shape);
  const int32_t sequence = world.add(), beside = other.add();
  world.append_all(sequence, tokens_from(1, 40));
  const int64_t held = world.stats().allocated_bytes;
  const int64_t tokens = (int64_t{1} << 50) / (2 * shape.kv_heads * shape.head_dim * 4);
  check_refused(pkv_cache_reserve(world.cache(), world.stream(), 1000, tokens, 1),
                PKV_RESOURCE_EXHAUSTED, {"bytes"});
  CHECK(world.stats().allocated_bytes == held);
  other.append_all(beside, tokens_from(1, 120));
  check_equals_fresh(other, beside, tokens_from(1, 120));
  world.append_all(sequence, tokens_from(41, 9));
  check_equals_fresh(world, sequence, tokens_from(1, 49));
}

TEST_CASE("device: rows that are attended in full are on the device too, no others") {
  Shape shape = captured_shape();
  Machine machine("gpu-host"), other("gpu-host");
  World world(machine, shape);
  shape.rows_memory = PKV_ALLOC_DEVICE;
  World resident(other, shape);
  pkv_cache_usage early{};
  for (World* each : {&world, &resident}) {
    for (int32_t i = 0; i < shape.sequences; ++i) REQUIRE(each->add() == i);
    CHECK(each->usage().recent_rows == 0);
    for (uint64_t turn = 0; turn < 30; ++turn) {
      for (int32_t sequence = 0; sequence < shape.sequences; ++sequence) {
        each->append_all(sequence, tokens_from(100 * turn, 20));
      }
      each->flush();
      if (turn == 9 && each == &world) early = world.usage();
    }
    // Forks share them, and take their own when they go their own way.
    check(pkv_cache_remove(each->cache(), each->stream(), 1));
    int32_t fork = 0;
    check(pkv_cache_fork(each->cache(), each->stream(), 0, 600, &fork));
    REQUIRE(fork == 1);
    each->append_all(fork, tokens_from(7000, 3));
    each->append_all(0, tokens_from(8000, 40));
  }
  CHECK(early.recent_rows > 0);
  CHECK(2 * world.usage().row_pages > 3 * early.row_pages);
  CHECK(world.usage().recent_rows == early.recent_rows);
  CHECK(resident.usage().recent_rows == 0);
  for (int32_t sequence = 0; sequence < shape.sequences; ++sequence) {
    check_same(world, sequence, resident, sequence);
  }
}

TEST_CASE("device: a flush on a stream of its own; what reads a layer waits for it") {
  Shape shape = captured_shape();
  shape.fit_positions = 48;
  Machine machine("gpu-host"), other("gpu-host");
  Stream side(machine.device);
  World world(machine, shape), plain(other, shape);
  const int32_t sequence = world.add();
  REQUIRE(plain.add() == sequence);
  for (uint64_t t = 0; t < 24; ++t) {
    const std::vector<uint64_t> tokens = tokens_from(100 + 13 * t, 13);
    world.append_all(sequence, tokens);
    plain.append_all(sequence, tokens);
    check(pkv_cache_flush(world.cache(), side.get()));
    plain.flush();
    for (int32_t layer = shape.layers; layer-- > 0;) {
      Attended a, b;
      check(world.decode_step(layer, {{sequence, {9000 + t}}}, 0, a));
      check(plain.decode_step(layer, {{sequence, {9000 + t}}}, 0, b));
      CHECK(same_bits(a.output, b.output));
      CHECK(a.found.positions == b.found.positions);
    }
  }
  side.sync();
  check_same(world, sequence, plain, sequence);
}

// Its work is enqueued and has not run: destroying waits for it, in whatever order handles go.
TEST_CASE("device: a cache is destroyed behind an append and a step that are in flight") {
  for (const bool stream_goes_first : {false, true}) {
    auto machine = std::make_unique<Machine>("cpu");
    auto world = std::make_unique<World>(*machine, captured_shape());
    const int32_t sequence = world->add();
    world->append_all(sequence, tokens_from(1, 300), false);
    const Shape& shape = world->shape();
    const Parts parts = {{sequence, {700}}};
    const Batch batch(parts);
    const std::vector<uint64_t> tokens = {700};
    const Tensor keys = world->content().keys(tokens, 0);
    const Tensor values = world->content().values(tokens, 0);
    const Tensor queries = world->content().queries(tokens, 0);
    const Tensor output(shape.output_dtype, {1, shape.query_heads, shape.value_dim});
    auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
    attention.query = queries.view();
    attention.output = output.view();
    const pkv_tensor k = keys.view(), v = values.view();
    check(pkv_cache_flush(world->cache(), world->stream()));
    check(pkv_cache_decode_step(world->cache(), world->stream(), 0, &batch.c, &k, &v, &attention));
    check(pkv_cache_append(world->cache(), world->stream(), 1, &batch.c, &k, &v, nullptr));
    if (stream_goes_first) {
      const Stream stream(std::move(machine->stream));
      const Device device(std::move(machine->device));
    }
    world.reset();
    machine.reset();
    double sum = 0;
    for (const float number : output.numbers()) sum += std::fabs(number);
    CHECK(sum > 0);
  }
}
}  // namespace
}  // namespace pkv::cache_model
