// A small cache for the tests of faults: two layers, fits and kept queries from a few tokens on.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cache/fixture.h"
#include "tests/common/folder.h"
#include "tests/faults/inject.h"

namespace pkv::faults {

using cache_model::Attended;
using cache_model::Machine;
using cache_model::Shape;
using cache_model::tokens_from;
using cache_model::World;
using test::Folder;

inline Shape small_shape() {
  Shape shape;
  shape.layers = 2;
  shape.sequences = 5;
  shape.kv_heads = 1;
  shape.query_heads = 2;
  shape.head_dim = shape.value_dim = 8;
  shape.capacity = 400;
  shape.local = shape.interval = 16;
  shape.dense_below = 32;
  shape.fit_positions = 4;
  shape.options = {{"k", "4"}, {"candidates", "0.5"}};
  shape.policies = {{PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 20}};
  return shape;
}

// Everything that a cache's sequences hold and are.
inline std::string state_of(World& world) {
  const pkv_cache_usage usage = world.usage();
  std::string all = std::to_string(usage.row_pages) + "," + std::to_string(usage.record_pages) +
                    "," + std::to_string(usage.samples) + ";";
  for (int32_t sequence = 0; sequence < world.shape().sequences; ++sequence) {
    int64_t length = 0;
    if (pkv_cache_length(world.cache(), 0, sequence, &length) != PKV_OK) {
      all += "-;";
      continue;
    }
    for (int32_t layer = 0; layer < world.shape().layers; ++layer) {
      const pkv_cache_regions r = world.regions(layer, sequence);
      all += std::to_string(r.tokens) + "," + std::to_string(r.zone) + "," +
             std::to_string(r.fits) + "," + std::to_string(r.next_fit) + ":" +
             world.content_of(layer, sequence) + ";";
    }
  }
  return all;
}

// Tokens with everything that a call takes, made beforehand: only what the library allocates fails.
struct Tokens {
  Tokens(const World& world, int32_t of_layer, const cache_model::Parts& parts)
      : layer(of_layer),
        batch(parts),
        keys(PKV_DTYPE_F32, {0}),
        values(keys),
        queries(keys),
        output(keys) {
    std::vector<uint64_t> all;
    for (const auto& part : parts) all.insert(all.end(), part.tokens.begin(), part.tokens.end());
    keys = world.content().keys(all, layer);
    values = world.content().values(all, layer);
    queries = world.content().queries(all, layer);
    const Shape& shape = world.shape();
    output = cache_model::Tensor(
        shape.output_dtype, {static_cast<int64_t>(all.size()), shape.query_heads, shape.value_dim});
  }
  pkv_status append(World& world) const {
    const pkv_tensor k = keys.view(), v = values.view(), q = queries.view();
    return pkv_cache_append(world.cache(), world.stream(), layer, &batch.c, &k, &v, &q);
  }
  pkv_cache_attention attention(uint32_t flags) const {
    pkv_cache_attention attention{};
    pkv_cache_attention_init(&attention, sizeof attention);
    attention.flags = flags;
    attention.query = queries.view();
    attention.output = output.view();
    return attention;
  }
  pkv_status attend(World& world, uint32_t flags = 0) const {
    pkv_cache_attention wanted = attention(flags);
    return pkv_cache_attend(world.cache(), world.stream(), layer, &batch.c, &wanted);
  }
  pkv_status decode(World& world) const {
    const pkv_tensor k = keys.view(), v = values.view();
    pkv_cache_attention wanted = attention(0);
    return pkv_cache_decode_step(world.cache(), world.stream(), layer, &batch.c, &k, &v, &wanted);
  }

  int32_t layer;
  cache_model::Batch batch;
  cache_model::Tensor keys, values, queries, output;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace pkv::faults
