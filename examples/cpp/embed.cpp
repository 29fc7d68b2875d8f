// pariskv from C++20 with pariskv.hpp: embed TRACE INDEX. What c/embed.c does; handles destroy
// themselves, failures are exceptions.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <pariskv/pariskv.hpp>
#include <string>
#include <vector>

#include "../c/trace.h"

namespace {

constexpr int64_t kQueries = 8;
constexpr int32_t kHits = 100;  // the default of the option k

pkv_tensor view(void* data, pkv_dtype dtype, const std::vector<int64_t>& shape,
                const std::vector<int64_t>& strides = {}) {
  pkv_tensor tensor = {};
  tensor.data = data;
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.shape = shape.data();
  tensor.strides = strides.empty() ? nullptr : strides.data();
  return tensor;
}

unsigned bits_of(float value) { return std::bit_cast<uint32_t>(value); }

void run(const trace& t, const char* index_path) {
  const int64_t h = t.keys.shape[0], n = t.keys.shape[1], d = t.keys.shape[2];
  const int64_t m = t.queries.shape[0], hq = t.queries.shape[1], dv = t.values.shape[2];
  const std::vector<int64_t> key_shape = {h, n, d}, value_shape = {h, n, dv};
  const std::vector<int64_t> sample_shape = {hq, m, d}, sample_strides = {d, hq * d, 1};
  const pkv_tensor keys = view(t.keys.data, PKV_DTYPE_F16, key_shape);
  const pkv_tensor values = view(t.values.data, PKV_DTYPE_F16, value_shape);
  const pkv_tensor sample = view(t.queries.data, PKV_DTYPE_F16, sample_shape, sample_strides);

  pkv::Runtime runtime;
  pkv::Device device(runtime, "cpu");
  pkv::Stream stream(device);
  pkv::Config config;
  config.set("head_dim", std::to_string(d)).set("value_dim", std::to_string(dv));
  pkv::Codec codec = pkv::Codec::fit_sync(device, stream, config, keys, &sample, &values);
  pkv::Index index(device, codec, 1, n);
  index.append_sync(stream, 0, keys, &values);
  index.save_sync(stream, index_path);

  pkv_plan_desc desc = pkv::plan_desc();
  desc.query_heads = static_cast<int32_t>(hq);
  desc.owns_scratch = 1;
  const pkv::Plan plan(index, config, desc);

  std::vector<int32_t> positions(static_cast<size_t>(h * kHits)), counts(static_cast<size_t>(h));
  std::vector<float> scores(positions.size()), output(static_cast<size_t>(hq * dv));
  pkv_hits hits = pkv::hits();
  hits.positions = positions.data();
  hits.scores = scores.data();
  hits.counts = counts.data();
  const std::vector<int64_t> source_keys = {1, h, n, d}, source_values = {1, h, n, dv};
  const std::vector<int64_t> query_shape = {1, hq, d}, output_shape = {1, hq, dv};
  pkv_step step = pkv::step();
  step.source.keys = view(t.keys.data, PKV_DTYPE_F16, source_keys);
  step.source.values = view(t.values.data, PKV_DTYPE_F16, source_values);
  step.hits = &hits;
  step.output = view(output.data(), PKV_DTYPE_F32, output_shape);

  for (int64_t i = 0; i < std::min(kQueries, m); ++i) {
    auto* query = static_cast<uint16_t*>(t.queries.data) + i * hq * d;
    step.query = view(query, PKV_DTYPE_F16, query_shape);
    plan.step(stream, step);
    stream.sync();
    for (int64_t head = 0; head < h; ++head) {
      std::printf("hits");
      for (int64_t j = head * kHits; j < head * kHits + counts[static_cast<size_t>(head)]; ++j) {
        const auto at = static_cast<size_t>(j);
        std::printf(" %d:%08x", static_cast<int>(positions[at]), bits_of(scores[at]));
      }
      std::printf("\n");
    }
    std::printf("output");
    for (const float value : output) std::printf(" %08x", bits_of(value));
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: embed TRACE INDEX\n");
    return 2;
  }
  trace t = {};
  if (trace_read(argv[1], &t) != 0) return 1;
  const std::unique_ptr<char, void (*)(void*)> owner(t.bytes, std::free);
  try {
    run(t, argv[2]);
  } catch (const pkv::Error& error) {
    std::fprintf(stderr, "%s: %s\n", pkv_status_name(error.status()), error.what());
    return 1;
  }
  return 0;
}
