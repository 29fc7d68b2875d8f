// Laws of the cache, on every kind of shape: what a sequence answers is a function of its tokens.
#include <algorithm>
#include <array>

#include "tests/cache/fixture.h"
#include "tests/conformance/random.h"

namespace pkv::cache_model {
namespace {

using conformance::Random;

constexpr uint64_t kSeed = 20260101;
using Counts = std::vector<int64_t>;

template <class Body>
void for_each_shape(const Body& body) {
  for (const char* backend : backends()) {
    Machine machine(backend);
    for (const Shape& shape : property_shapes()) {
      if (is_brief() && (shape.name == "mean" || shape.name == "sketch2")) continue;
      CAPTURE(backend);
      CAPTURE(shape.name);
      body(machine, shape);
    }
  }
}

TEST_CASE("cache: appended in pieces equals appended at once") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    Random random(kSeed);
    const std::vector<uint64_t> tokens = tokens_from(1, brief_or(150, 500));
    for (const int64_t most : brief_or(Counts{12}, Counts{1, 40, 300})) {
      CAPTURE(most);
      World world(machine, shape);
      const int32_t sequence = world.add();
      for (std::size_t at = 0; at < tokens.size();) {
        const auto count = std::min<std::size_t>(tokens.size() - at,
                                                 1 + static_cast<std::size_t>(random.below(most)));
        const auto first = tokens.begin() + static_cast<int64_t>(at);
        world.append_all(sequence, {first, first + static_cast<int64_t>(count)});
        at += count;
      }
      check_equals_fresh(world, sequence, tokens);
    }
  });
}

// A tensor [n, h, d] laid out with all tokens of a head behind each other, or with a gap behind the
// heads of each token.
class Laid {
 public:
  Laid(const Tensor& dense, bool by_head)
      : shape_(dense.shape()),
        strides_(by_head ? Three{shape_[2], shape_[0] * shape_[2], 1}
                         : Three{(shape_[1] + 1) * shape_[2], shape_[2], 1}),
        tensor_(dense.dtype(), {shape_[0] * (shape_[1] + 1) * shape_[2]}) {
    for (int64_t t = 0; t < shape_[0]; ++t) {
      for (int64_t head = 0; head < shape_[1]; ++head) {
        for (int64_t j = 0; j < shape_[2]; ++j) {
          tensor_.set(t * strides_[0] + head * strides_[1] + j,
                      dense.get((t * shape_[1] + head) * shape_[2] + j));
        }
      }
    }
  }
  pkv_tensor view() const {
    pkv_tensor view = tensor_.view();
    view.ndim = 3;
    view.shape = shape_.data();
    view.strides = strides_.data();
    return view;
  }

 private:
  using Three = std::array<int64_t, 3>;
  std::vector<int64_t> shape_;
  Three strides_;
  Tensor tensor_;
};

TEST_CASE("cache: tensors laid out head by head, or with gaps, equal dense ones") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    const std::vector<uint64_t> tokens = tokens_from(1, brief_or(150, 500));
    for (const bool by_head : {true, false}) {
      CAPTURE(by_head);
      World world(machine, shape);
      const int32_t sequence = world.add();
      const Batch batch({{sequence, tokens}});
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const Laid keys(world.content().keys(tokens, layer), by_head);
        const Laid values(world.content().values(tokens, layer), by_head);
        const Laid queries(world.content().queries(tokens, layer), by_head);
        const pkv_tensor k = keys.view(), v = values.view(), q = queries.view();
        check(pkv_cache_append(world.cache(), world.stream(), layer, &batch.c, &k,
                               shape.has_own_values() ? &v : nullptr, &q));
        check(pkv_stream_sync(world.stream()));
      }
      check_equals_fresh(world, sequence, tokens);
    }
  });
}

TEST_CASE("cache: a ragged batch equals one sequence after the other") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    World world(machine, shape);
    std::vector<std::vector<uint64_t>> tokens(3);
    for (int i = 0; i < 3; ++i) world.add();
    Random random(kSeed);
    for (int round = 0; round < brief_or(4, 12); ++round) {
      Parts parts;
      for (const int32_t sequence : {2, 0, 1}) {
        const std::vector<uint64_t> more =
            tokens_from(static_cast<uint64_t>(1000 * round + 100 * sequence), random.below(60));
        auto& all = tokens[static_cast<std::size_t>(sequence)];
        all = joined(all, more);
        parts.push_back({sequence, more});
      }
      for (int32_t layer = 0; layer < shape.layers; ++layer) check(world.append(layer, parts));
    }
    for (int32_t sequence = 0; sequence < 3; ++sequence) {
      check_equals_fresh(world, sequence, tokens[static_cast<std::size_t>(sequence)]);
    }
  });
}

TEST_CASE("cache: forked and then different equals two caches") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    for (const int64_t prefix : brief_or(Counts{100}, Counts{0, 3, 63, 64, 65, 127, 128, 260})) {
      CAPTURE(prefix);
      World world(machine, shape);
      const int32_t parent = world.add();
      const std::vector<uint64_t> tokens = tokens_from(1, brief_or(110, 300));
      world.append_all(parent, tokens);
      const int32_t child = world.fork(parent, prefix);
      std::vector<uint64_t> of_child(tokens.begin(), tokens.begin() + prefix);
      check_equals_fresh(world, child, of_child);
      const int64_t more = brief_or(40, 150);
      const std::vector<uint64_t> right = tokens_from(5000, more), left = tokens_from(7000, more);
      world.append_all(child, right);
      world.append_all(parent, left);
      check_equals_fresh(world, child, joined(of_child, right));
      check_equals_fresh(world, parent, joined(tokens, left));
      world.remove(parent);
      check_equals_fresh(world, child, joined(of_child, right));
    }
  });
}

TEST_CASE("cache: truncated equals never appended") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    Random random(kSeed);
    World world(machine, shape);
    const int32_t sequence = world.add();
    std::vector<uint64_t> tokens;
    for (int round = 0; round < brief_or(3, 12); ++round) {
      const auto first = static_cast<uint64_t>(1 + 1000 * round);
      const std::vector<uint64_t> more = tokens_from(first, 1 + random.below(brief_or(130, 400)));
      tokens = joined(tokens, more);
      world.append_all(sequence, more);
      const int64_t size = static_cast<int64_t>(tokens.size());
      const int64_t less = round % 2 == 0 ? random.below(20) : random.below(size + 1);
      tokens.resize(static_cast<std::size_t>(size - std::min(less, size)));
      CAPTURE(round);
      CAPTURE(tokens.size());
      world.truncate(sequence, static_cast<int64_t>(tokens.size()));
      check_equals_fresh(world, sequence, tokens);
    }
  });
}

// Of one query token.
std::vector<int32_t> hits_of(const Found& found, std::size_t token) {
  const auto per_token = found.positions.size() / static_cast<std::size_t>(found.n);
  const auto first = found.positions.begin() + static_cast<int64_t>(token * per_token);
  return {first, first + static_cast<int64_t>(per_token)};
}

TEST_CASE("cache: a step of several tokens equals single ones with no flush between") {
  for_each_shape([](Machine& machine, Shape shape) {
    shape.interval = 32;
    // The zone ends at sink + 32 m; these lengths are followed by seven more of the same zone.
    const int64_t behind = shape.sink + shape.local;
    for (const int64_t begin :
         brief_or(Counts{behind + 64}, Counts{0, 20, behind + 64, behind + 96 + 24})) {
      CAPTURE(begin);
      World at_once(machine, shape), singly(machine, shape);
      const int32_t sequence = at_once.add();
      REQUIRE(singly.add() == sequence);
      at_once.append_all(sequence, tokens_from(1, begin));
      singly.append_all(sequence, tokens_from(1, begin));
      const std::vector<uint64_t> tokens = tokens_from(5000, 7);
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        CAPTURE(layer);
        Attended all;
        check(at_once.decode_step(layer, {{sequence, tokens}}, 0, all));
        const std::size_t heads = static_cast<std::size_t>(shape.query_heads);
        const std::size_t width = heads * static_cast<std::size_t>(shape.value_dim);
        for (std::size_t t = 0; t < tokens.size(); ++t) {
          CAPTURE(t);
          Attended one;
          check(singly.decode_step(layer, {{sequence, {tokens[t]}}}, 0, one));
          const auto output = all.output.begin() + static_cast<int64_t>(t * width);
          const auto lse = all.lse.begin() + static_cast<int64_t>(t * heads);
          const std::vector<float> outputs(output, output + static_cast<int64_t>(width));
          const std::vector<float> lses(lse, lse + static_cast<int64_t>(heads));
          if (shape.is_sparse(layer)) CHECK(hits_of(all.found, t) == hits_of(one.found, 0));
          if (std::getenv("PKV_CACHE_PLUGIN") == nullptr) {
            CHECK(same_bits(outputs, one.output));
            CHECK(same_bits(lses, one.lse));
          } else {  // blocks share the tokens of the longest one's dense part among them
            check_near(shape.output_dtype, outputs, one.output);
            check_near(PKV_DTYPE_F32, lses, one.lse);
          }
        }
      }
      check_same(at_once, sequence, singly, sequence);
    }
  });
}

TEST_CASE("cache: with all of the zone selected attention is full attention, for every tail") {
  for (const char* backend : backends()) {
    Machine machine(backend);
    for (const char* tail : {"drop", "mean", "sampled", "sketch2", "sketch4"}) {
      for (const pkv_dtype dtype : {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
        if (is_brief() && dtype != PKV_DTYPE_F16) continue;
        CAPTURE(backend);
        CAPTURE(tail);
        CAPTURE(dtype);
        Shape shape;
        shape.options = {{"k", "300"}, {"tail", tail}};
        shape.dtype = shape.query_dtype = shape.output_dtype = dtype;
        World world(machine, shape);
        Naive naive(shape);
        const int32_t sequence = world.add();
        naive.add();
        const std::vector<uint64_t> tokens = tokens_from(1, brief_or(120, 250));
        world.append_all(sequence, tokens);
        REQUIRE(world.regions(0, sequence).is_encoded == 1);
        const Parts queries = {{sequence, tokens_from(5000, 3)}};
        Attended sparse;
        check(world.attend(0, queries, 0, sparse));
        // Judged as if every token were attended in full: an exact call's expectation.
        naive.append_all(sequence, tokens);
        CHECK_NOTHROW(judge_step(world, naive, 0, queries, PKV_CACHE_EXACT, sparse));
        CHECK(sparse.found.counts[0] == world.regions(0, sequence).zone);
      }
    }
  }
}

TEST_CASE("cache: exact attention over an encoded prefix is full attention, for any many tokens") {
  for_each_shape([](Machine& machine, const Shape& shape) {
    World world(machine, shape);
    Naive naive(shape);
    const int32_t sequence = world.add();
    naive.add();
    for (const int64_t chunk : brief_or(Counts{85, 20}, Counts{150, 90, 120})) {
      const std::vector<uint64_t> tokens = tokens_from(static_cast<uint64_t>(1000 * chunk), chunk);
      naive.append_all(sequence, tokens);
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        Attended attended;
        const Parts parts = {{sequence, tokens}};
        check(world.decode_step(layer, parts, PKV_CACHE_EXACT, attended));
        CHECK_NOTHROW(judge_step(world, naive, layer, parts, PKV_CACHE_EXACT, attended));
      }
    }
  });
}

}  // namespace
}  // namespace pkv::cache_model
