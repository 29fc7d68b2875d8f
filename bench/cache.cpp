// What the KV cache adds to its stages on backend cpu: bytes held against the format's figure,
// files, forks, truncations, and the time of append and decode_step against the bare stages on the
// same data. Prints JSON.
//
//   pkv_bench_cache [--tokens 32768] [--steps 600] [--file /tmp/pkv_bench_cache.pkv]
//   pkv_bench_cache --rolling 100000
//
// One layer, 8 KV heads, 32 query heads, d = dv = 128, bf16, default profile. What is compared has
// one codec that is given, so that no fit lies in it; fits are measured apart. Bare append: copy K
// and V into rows by head, pkv_index_append. Bare step: copy the token's rows to the tail,
// pkv_step_run; every 512 tokens pkv_index_append of what leaves the tail. Cache and bare take
// turns, call by call. --rolling: sequences come, fork, are cut back and go, for so many decoding
// steps; the bytes held must not grow.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "bench/cache_world.h"

namespace pkv::bench {
namespace {

struct Options {
  int64_t tokens = 32768;  // of the zone
  int64_t steps = 600;
  int64_t rolling = 0;
  std::string file = "/tmp/pkv_bench_cache.pkv";
};

class Cache {
 public:
  Cache(const Engine& engine, const pkv_cache_desc& desc) : engine_(engine) {
    check(pkv_cache_create(engine.device, engine.config, &desc, &cache_));
  }
  ~Cache() { pkv_cache_destroy(cache_); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  pkv_cache* get() const { return cache_; }
  int32_t add() {
    int32_t sequence = -1;
    check(pkv_cache_add(cache_, &sequence));
    return sequence;
  }
  void append(int32_t sequence, int64_t tokens, const Rows& keys, const Rows& values,
              const Rows* queries = nullptr) {
    const pkv_cache_batch batch = batch_of(&sequence, &tokens);
    const Tensor k(keys.data(), {tokens, kHeads, kDim}, {kHeads * kDim, kDim, 1});
    const Tensor v(values.data(), {tokens, kHeads, kDim}, {kHeads * kDim, kDim, 1});
    const Tensor q(queries == nullptr ? nullptr : queries->data(), {tokens, kQueryHeads, kDim},
                   {kQueryHeads * kDim, kDim, 1});
    check(pkv_cache_append(cache_, engine_.stream, 0, &batch, &k.c, &v.c,
                           queries == nullptr ? nullptr : &q.c));
  }
  void step(int32_t sequence, const Rows& key, const Rows& value, const Rows& query,
            float* output) {
    const int64_t one = 1;
    const pkv_cache_batch batch = batch_of(&sequence, &one);
    const Tensor k(key.data(), {1, kHeads, kDim}, {kHeads * kDim, kDim, 1});
    const Tensor v(value.data(), {1, kHeads, kDim}, {kHeads * kDim, kDim, 1});
    const Tensor q(query.data(), {1, kQueryHeads, kDim}, {kQueryHeads * kDim, kDim, 1});
    const Tensor out(output, {1, kQueryHeads, kDim}, {kQueryHeads * kDim, kDim, 1}, PKV_DTYPE_F32);
    auto attention = made<pkv_cache_attention, pkv_cache_attention_init>();
    attention.query = q.c;
    attention.output = out.c;
    check(pkv_cache_decode_step(cache_, engine_.stream, 0, &batch, &k.c, &v.c, &attention));
  }
  pkv_cache_usage usage() const {
    auto usage = made<pkv_cache_usage, pkv_cache_usage_init>();
    check(pkv_cache_usage_get(cache_, &usage));
    return usage;
  }
  pkv_cache_stats stats() const {
    auto stats = made<pkv_cache_stats, pkv_cache_stats_init>();
    check(pkv_cache_stats_sync(cache_, engine_.stream, &stats));
    return stats;
  }

 private:
  const Engine& engine_;
  pkv_cache* cache_ = nullptr;
};

void print_ratio(const char* name, const std::vector<double>& cache,
                 const std::vector<double>& bare) {
  std::vector<double> ratios;
  for (size_t i = 0; i < cache.size(); ++i) ratios.push_back(cache[i] / bare[i]);
  const Spread c = spread(cache), b = spread(bare);
  const double sum = std::accumulate(cache.begin(), cache.end(), 0.0) /
                     std::accumulate(bare.begin(), bare.end(), 0.0);
  std::printf(
      "  \"%s\": {\"cache_us_min\": %.1f, \"cache_us_median\": %.1f, \"bare_us_min\": %.1f, "
      "\"bare_us_median\": %.1f, \"ratio_of_min\": %.3f, \"ratio_median\": %.3f, "
      "\"ratio_of_sums\": %.3f},\n",
      name, c.min, c.median, b.min, b.median, c.min / b.min, spread(ratios).median, sum);
}

// Append in chunks, then steps, each in turn.
void compare(const Engine& engine, const Options& options) {
  Random random;
  Source source(random);
  pkv_codec* codec = make_codec(engine, random);
  Cache cache(engine, desc_of(1));
  check(pkv_cache_import_codec(cache.get(), 0, codec));
  const int32_t sequence = cache.add();
  Bare bare(engine, codec, options.tokens);
  Rows keys, values, query;
  const auto timed = [](auto call) {
    const double begin = now();
    call();
    return now() - begin;
  };
  std::vector<double> of_cache, of_bare;
  const auto both = [&](int64_t turn, auto in_cache, auto in_bare) {
    double c = 0;
    if (turn % 2 == 0) c = timed(in_cache);
    const double b = timed(in_bare);
    if (turn % 2 != 0) c = timed(in_cache);
    of_cache.push_back(c);
    of_bare.push_back(b);
  };
  // Twice: the first time memory is new.
  for (int pass = 0; pass < 2; ++pass) {
    check(pkv_cache_reset(cache.get(), engine.stream, sequence));
    bare.reset();
    of_cache.clear();
    of_bare.clear();
    source.draw(kSink + kLocal, keys);
    source.draw(kSink + kLocal, values);
    cache.append(sequence, kSink + kLocal, keys, values);
    for (int64_t done = 0; done < options.tokens; done += kChunk) {
      source.draw(kChunk, keys);
      source.draw(kChunk, values);
      both(
          done / kChunk, [&] { cache.append(sequence, kChunk, keys, values); },
          [&] { bare.append(keys, values, kChunk); });
    }
  }
  print_ratio("append_4096", of_cache, of_bare);
  of_cache.clear();
  of_bare.clear();
  bare.plan();
  bare.set_tail(kLocal);
  std::vector<float> output(static_cast<size_t>(kQueryHeads * kDim));
  for (int64_t i = 0; i < options.steps; ++i) {
    source.draw(1, keys);
    source.draw(1, values);
    query.resize(static_cast<size_t>(kQueryHeads * kDim));
    for (uint16_t& x : query) x = random.bell();
    both(
        i, [&] { cache.step(sequence, keys, values, query, output.data()); },
        [&] { bare.step(keys, values, query, output.data()); });
  }
  print_ratio("decode_step", of_cache, of_bare);
  pkv_codec_destroy(codec);
}

// Bytes, forks, truncations, files; with fits and kept queries.
void hold(const Engine& engine, const Options& options) {
  Random random;
  Source source(random);
  pkv_cache_desc desc = desc_of(2);
  Cache cache(engine, desc);
  const int32_t sequence = cache.add();
  const int64_t tokens = kSink + options.tokens + kLocal;
  Rows keys, values, queries(static_cast<size_t>(kChunk * kQueryHeads * kDim));
  for (uint16_t& x : queries) x = random.bell();
  double append = 0;
  for (int64_t done = 0; done < tokens;) {
    const int64_t count = std::min(kChunk, tokens - done);
    source.draw(count, keys);
    source.draw(count, values);
    const double begin = now();
    cache.append(sequence, count, keys, values, &queries);
    append += now() - begin;
    done += count;
  }
  const pkv_cache_usage used = cache.usage();
  auto said = made<pkv_cache_usage, pkv_cache_usage_init>();
  check(pkv_cache_bytes(engine.device, engine.config, &desc, &tokens, 1, PKV_DTYPE_BF16, &said));
  const pkv_cache_stats stats = cache.stats();
  auto geometry = made<pkv_geometry, pkv_geometry_init>();
  pkv_codec* codec = nullptr;
  check(pkv_cache_codec(cache.get(), 0, sequence, &codec));
  check(pkv_codec_geometry(codec, &geometry));
  pkv_record_sizes sizes{};
  sizes.struct_size = sizeof sizes;
  check(pkv_record_sizes_get(&geometry, &sizes));
  int64_t layout = 0;  // records as the backend lays them out
  check(pkv_index_bytes(engine.device, codec, 1, options.tokens, &layout));
  pkv_codec_destroy(codec);
  const auto rows = static_cast<double>(tokens * kHeads * 2 * kDim * 2);
  const double sums = static_cast<double>(options.tokens / kInterval * kHeads * (kDim * 8 + 8));
  const double held =
      static_cast<double>(used.row_pages + used.record_pages + used.tables - used.partly);
  const double canonical =
      static_cast<double>(options.tokens * kHeads) * stats.bytes_per_key + rows + sums;
  std::printf(
      "  \"bytes\": {\"total\": %lld, \"row_pages\": %lld, \"record_pages\": %lld, "
      "\"tables\": %lld, \"codecs\": %lld, \"samples\": %lld, \"scratch\": %lld, "
      "\"partly\": %lld, \"estimate_equals_use\": %s, \"over_layout\": %.4f, "
      "\"over_canonical\": %.4f},\n",
      static_cast<long long>(used.total), static_cast<long long>(used.row_pages),
      static_cast<long long>(used.record_pages), static_cast<long long>(used.tables),
      static_cast<long long>(used.codecs), static_cast<long long>(used.samples),
      static_cast<long long>(used.scratch), static_cast<long long>(used.partly),
      said.total == used.total - used.scratch ? "true" : "false",
      held / (static_cast<double>(layout) + rows + sums), held / canonical);
  std::printf("  \"fits\": {\"count\": %lld, \"encoded\": %lld, \"append_us\": %.0f},\n",
              static_cast<long long>(stats.fits), static_cast<long long>(stats.encoded), append);
  std::vector<double> forks, cuts;
  for (int i = 0; i < 50; ++i) {
    int32_t child = -1;
    double begin = now();
    check(pkv_cache_fork(cache.get(), engine.stream, sequence, -1, &child));
    forks.push_back(now() - begin);
    check(pkv_cache_remove(cache.get(), engine.stream, child));
    cache.append(sequence, 3, keys, values);
    begin = now();
    check(pkv_cache_truncate(cache.get(), engine.stream, sequence, tokens));
    cuts.push_back(now() - begin);
  }
  std::printf("  \"fork_us\": {\"min\": %.1f, \"median\": %.1f},\n", spread(forks).min,
              spread(forks).median);
  std::printf("  \"truncate_us\": {\"min\": %.1f, \"median\": %.1f},\n", spread(cuts).min,
              spread(cuts).median);
  double begin = now();
  check(pkv_cache_save_sync(cache.get(), engine.stream, sequence, options.file.c_str(),
                            PKV_SAVE_OVERWRITE));
  const double save = now() - begin;
  const auto bytes =
      static_cast<double>(std::ifstream(options.file, std::ios::binary | std::ios::ate).tellg());
  std::vector<double> loads;
  for (int i = 0; i < 5; ++i) {
    int32_t loaded = -1, count = 0;
    begin = now();
    check(
        pkv_cache_load_sync(cache.get(), engine.stream, options.file.c_str(), 1, &loaded, &count));
    loads.push_back(now() - begin);
    check(pkv_cache_remove(cache.get(), engine.stream, loaded));
  }
  std::remove(options.file.c_str());
  std::printf(
      "  \"file\": {\"bytes\": %.0f, \"save_gb_s\": %.2f, \"load_gb_s_best\": %.2f, "
      "\"load_gb_s_median\": %.2f}\n",
      bytes, bytes / save * 1e-3, bytes / spread(loads).min * 1e-3,
      bytes / spread(loads).median * 1e-3);
}

int64_t resident_kilobytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    int64_t value = 0;
    if (word == "VmRSS:" && file >> value) return value;
  }
  return 0;
}

// At most five sequences; every 400 steps one comes and the oldest goes, every fourth is a fork;
// every 16 steps five tokens are taken back.
void roll(const Engine& engine, const Options& options) {
  Random random;
  Source source(random);
  Cache cache(engine, desc_of(6));
  Rows keys, values, query(static_cast<size_t>(kQueryHeads * kDim));
  std::vector<float> output(query.size());
  std::vector<int32_t> live;
  const auto length = [&](int32_t sequence) {
    int64_t tokens = 0;
    check(pkv_cache_length(cache.get(), 0, sequence, &tokens));
    return tokens;
  };
  for (int64_t step = 0; step < options.rolling; ++step) {
    if (step % 400 == 0) {
      if (live.size() == 5) {
        check(pkv_cache_remove(cache.get(), engine.stream, live.front()));
        live.erase(live.begin());
      }
      if (step % 1600 == 1200) {
        int32_t child = -1;
        check(pkv_cache_fork(cache.get(), engine.stream, live.back(), -1, &child));
        live.push_back(child);
      } else {
        live.push_back(cache.add());
        source.draw(1600, keys);
        source.draw(1600, values);
        cache.append(live.back(), 1600, keys, values);
      }
    }
    const int32_t sequence = live[static_cast<size_t>(step) % live.size()];
    source.draw(1, keys);
    source.draw(1, values);
    for (uint16_t& x : query) x = random.bell();
    cache.step(sequence, keys, values, query, output.data());
    if (step % 16 == 15) {
      check(pkv_cache_truncate(cache.get(), engine.stream, sequence, length(sequence) - 5));
    }
    if ((step + 1) % (options.rolling / 10) != 0) continue;
    std::printf(
        "  \"%lld\": {\"allocated\": %lld, \"held\": %lld, \"resident_kb\": %lld}%s\n",
        static_cast<long long>(step + 1), static_cast<long long>(cache.stats().allocated_bytes),
        static_cast<long long>(cache.usage().total), static_cast<long long>(resident_kilobytes()),
        step + 1 < options.rolling ? "," : "");
    std::fflush(stdout);
  }
}

int run(const Options& options) {
  const Engine engine(kDim);
  std::printf("{\n  \"tokens\": %lld, \"steps\": %lld,\n", static_cast<long long>(options.tokens),
              static_cast<long long>(options.steps));
  if (options.rolling > 0) {
    roll(engine, options);
  } else {
    compare(engine, options);
    hold(engine, options);
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace pkv::bench

int main(int count, char** words) {
  pkv::bench::Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    if (name == "--tokens") {
      options.tokens = std::atoll(words[i + 1]);
    } else if (name == "--steps") {
      options.steps = std::atoll(words[i + 1]);
    } else if (name == "--rolling") {
      options.rolling = std::atoll(words[i + 1]);
    } else if (name == "--file") {
      options.file = words[i + 1];
    } else {
      std::fprintf(stderr, "%s: no such option\n", words[i]);
      return 2;
    }
  }
  return pkv::bench::run(options);
}
