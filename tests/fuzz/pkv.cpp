// .pkv files of an index: loaded, or restored into an index in use. What is refused leaves that
// index as it was; what is taken can be looked at, searched, and appended to.
#include <algorithm>
#include <string>

#include "core/index/file_format.h"
#include "pariskv/pariskv.hpp"
#include "tests/common/hits_room.h"
#include "tests/fuzz/pkv_bytes.h"

namespace pkv::fuzz {
namespace {

constexpr int64_t kMostLooked = 64;  // tokens and rows: a test, not a workload

struct Machine {
  api::Runtime runtime;
  api::Device device{runtime, "cpu"};
  api::Stream stream{device};
  Machine() { check(pkv_device_set(device.get(), "threads", "1")); }
};

Machine& machine() {
  static Machine* const kept = new Machine;
  return *kept;
}

pkv_tensor view(float* data, const int64_t* shape, int32_t ndim) {
  pkv_tensor tensor{};
  tensor.data = data;
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.ndim = ndim;
  tensor.dtype = PKV_DTYPE_F32;
  tensor.shape = shape;
  return tensor;
}

// Numbers that repeat after 251 elements.
std::vector<float> wave(int64_t count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>((i * 37) % 251) / 64 - 2;
  }
  return numbers;
}

struct Options {
  const char* codec = "polar4";
  const char* vote = "graded";
  const char* tail = "sampled";
  const char* v_source = "own";
  const char* nonfinite = "refuse";
};

// An index of two sequences with 9 and 3 tokens, saved.
std::string saved(const Options& options) {
  api::Config config("default");
  config.set("head_dim", "16");
  config.set("codec", options.codec);
  config.set("vote", options.vote);
  config.set("tail", options.tail);
  config.set("v_source", options.v_source);
  config.set("nonfinite", options.nonfinite);
  config.set("fit", "keys");
  std::vector<float> data = wave(2 * 9 * 16);
  const int64_t shape[] = {2, 9, 16}, few_shape[] = {2, 3, 16};
  const pkv_tensor keys = view(data.data(), shape, 3), few = view(data.data(), few_shape, 3);
  const bool has_values = std::string_view(options.v_source) == "own";
  const pkv_tensor* values = has_values ? &keys : nullptr;
  const api::Codec codec =
      Codec::fit_sync(machine().device, machine().stream, config, keys, nullptr, values);
  const api::Index index(machine().device, codec, 2, 40);
  check(pkv_index_append_sync(index.get(), machine().stream.get(), 0, &keys, values));
  check(pkv_index_append_sync(index.get(), machine().stream.get(), 1, &few,
                              has_values ? &few : nullptr));
  const Folder folder;
  const std::string path = folder.file("seed.pkv");
  check(pkv_index_save_sync(index.get(), machine().stream.get(), path.c_str(), 0));
  return read_file(path);
}

// Everything an index of at most kMostLooked tokens holds.
std::string content(const pkv_index* index, const pkv_geometry& g, int32_t sequences) {
  std::string all;
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    int64_t length = 0;
    check(pkv_index_length(index, sequence, &length));
    all += std::to_string(length) + ";";
    const int64_t count = std::min(length, kMostLooked);
    for (int32_t head = 0; head < std::min(g.kv_heads, 4) && count > 0; ++head) {
      std::vector<uint16_t> planes[8];
      for (auto& plane : planes) {
        // no plane has more than five bits and one factor an element
        const int32_t bytes = std::max(g.head_dim, g.value_dim) * 5 / 8 + 2;
        plane.resize(static_cast<std::size_t>(count * bytes + 1) / 2);
      }
      pkv_records records{};
      records.struct_size = sizeof records;
      records.signs = reinterpret_cast<uint8_t*>(planes[0].data());
      records.vote_factors = planes[1].data();
      records.codes = reinterpret_cast<uint8_t*>(planes[2].data());
      records.factors = planes[3].data();
      records.value_signs = reinterpret_cast<uint8_t*>(planes[4].data());
      records.value_codes = reinterpret_cast<uint8_t*>(planes[5].data());
      records.value_factors = planes[6].data();
      records.value_norms = planes[7].data();
      check(
          pkv_index_export_sync(index, machine().stream.get(), sequence, head, 0, count, &records));
      for (const auto& plane : planes) {
        all.append(reinterpret_cast<const char*>(plane.data()), plane.size() * 2);
      }
    }
  }
  return all;
}

const char* choice(int32_t number, std::initializer_list<const char*> names) {
  return number >= 1 && number <= static_cast<int32_t>(names.size()) ? names.begin()[number - 1]
                                                                     : "";
}

// The options that fix the records of a file, from the file.
api::Config config_of(const FileGeometry& f) {
  api::Config config("default");
  const auto set = [&config](const char* name, const std::string& value) {
    check(pkv_config_set(config.get(), name, value.c_str()));
  };
  set("head_dim", std::to_string(f.head_dim));
  set("v_source", choice(f.v_source, {"own", "k_prefix", "none"}));
  if (f.v_source != PKV_V_SOURCE_NONE) set("value_dim", std::to_string(f.value_dim));
  set("codec", choice(f.codec, {"polar4", "scalar4", "scalar5"}));
  set("vote", choice(f.vote, {"tier", "graded"}));
  set("rounds", std::to_string(f.rounds));
  set("seed", std::to_string(f.seed));
  set("center", f.center != 0 ? "on" : "off");
  set("balance", f.balance != 0 ? "on" : "off");
  set("fit", f.fit_picked != 0 ? "picked" : "keys");
  set("value_norm", f.value_norm != 0 ? "on" : "off");
  set("tail", f.sketch_bits == 0 ? "drop" : "sketch" + std::to_string(f.sketch_bits));
  set("nonfinite", f.nonfinite != 0 ? "isolate" : "refuse");
  set("k", "5");
  return config;
}

// Votes, selects and reranks over the loaded records, whatever numbers they hold.
void search(const pkv_index* index, const FileGeometry& f) {
  const api::Config config = config_of(f);
  auto desc = plan_desc();
  desc.query_heads = f.kv_heads;
  desc.owns_scratch = 1;
  pkv_plan* made = nullptr;
  const pkv_status status = pkv_plan_create(index, config.get(), &desc, &made);
  if (status != PKV_OK) {
    // sketch strides and combinations that options do not have
    require(status == PKV_FAILED_PRECONDITION || status == PKV_INVALID_ARGUMENT ||
                status == PKV_UNIMPLEMENTED || status == PKV_RESOURCE_EXHAUSTED,
            "a plan over a loaded index is made or refused");
    return;
  }
  const auto heads = static_cast<std::size_t>(f.kv_heads);
  std::vector<float> query = wave(int64_t{f.kv_heads} * f.head_dim);
  const int64_t shape[] = {1, f.kv_heads, f.head_dim};
  const pkv_tensor view_of_query = view(query.data(), shape, 3);
  int64_t c = 0;
  check(pkv_plan_candidates(made, &c));
  const test::HitsRoom found({f.kv_heads, f.kv_heads, 5, c, 4096});
  check(pkv_retrieve(made, machine().stream.get(), &view_of_query, nullptr, &found.hits));
  int64_t length = 0;
  check(pkv_index_length(index, 0, &length));
  for (std::size_t h = 0; h < heads; ++h) {
    require(found.counts[h] >= 0 && found.counts[h] <= 5, "counts are within k");
    for (int32_t i = 0; i < found.counts[h]; ++i) {
      const int32_t position = found.positions[h * 5 + static_cast<std::size_t>(i)];
      require(position >= 0 && position < length, "positions are within the sequence");
    }
  }
  pkv_plan_destroy(made);
}

void use(pkv_index* index, const pkv_codec* codec, const FileGeometry& f) {
  auto g = geometry();
  check(pkv_codec_geometry(codec, &g));
  auto stats = index_stats();
  check(pkv_index_stats_sync(index, machine().stream.get(), &stats));
  require(stats.bad_keys >= 0 && stats.bad_keys <= stats.tokens * g.kv_heads,
          "bad keys are keys of the index");
  const auto sequences = static_cast<int32_t>(std::min<int64_t>(stats.sequences, 4));
  content(index, g, sequences);
  if (g.kv_heads > kMostLooked) return;
  search(index, f);
  int64_t length = 0;
  check(pkv_index_length(index, 0, &length));
  std::vector<float> data = wave(2 * int64_t{g.kv_heads} * std::max(g.head_dim, g.value_dim));
  const int64_t key_shape[] = {g.kv_heads, 2, g.head_dim};
  const int64_t value_shape[] = {g.kv_heads, 2, g.value_dim};
  const pkv_tensor keys = view(data.data(), key_shape, 3);
  const pkv_tensor values = view(data.data(), value_shape, 3);
  const bool has_values = g.v_source == PKV_V_SOURCE_OWN;
  const pkv_status status = pkv_index_append_sync(index, machine().stream.get(), 0, &keys,
                                                  has_values ? &values : nullptr);
  int64_t after = 0;
  check(pkv_index_length(index, 0, &after));
  require(after == length + (status == PKV_OK ? 2 : 0), "what is refused is not appended");
  // Fitted numbers of the file's may take a key beyond what is finite, and its capacity all memory.
  require(status == PKV_OK ? length + 2 <= stats.capacity
                           : status == PKV_RESOURCE_EXHAUSTED || status == PKV_INVALID_ARGUMENT,
          "a loaded index is appended to where it has room");
}

bool is_refusal(pkv_status status) {
  return status == PKV_DATA_LOSS || status == PKV_FAILED_PRECONDITION ||
         status == PKV_RESOURCE_EXHAUSTED || status == PKV_UNIMPLEMENTED;
}

}  // namespace

std::vector<std::string> seeds() {
  return {saved({}), saved({.codec = "scalar5", .vote = "tier", .tail = "sketch4"}),
          saved({.codec = "scalar4", .tail = "sketch2", .nonfinite = "isolate"}),
          saved({.tail = "drop", .v_source = "none"}),
          saved({.tail = "mean", .v_source = "k_prefix"})};
}

void run(Input input) {
  static MemoryFile file;
  const std::vector<uint8_t> bytes = mended(input);
  file.fill(bytes);
  pkv_index* index = nullptr;
  pkv_codec* codec = nullptr;
  pkv_status status = pkv_index_load_sync(machine().device.get(), machine().stream.get(),
                                          file.path().c_str(), &index, &codec);
  if (status == PKV_OK) {
    FileGeometry fields{};
    FileSection section{};
    for (std::size_t at = sizeof(FileHeader); section.type != kGeometrySection;
         at += sizeof section) {
      std::memcpy(&section, bytes.data() + at, sizeof section);
    }
    std::memcpy(&fields, bytes.data() + section.offset, sizeof fields);
    use(index, codec, fields);
  } else {
    require(is_refusal(status), "a file is refused with a code for files");
    require(index == nullptr && codec == nullptr, "a refused file leaves no objects");
    require_text(pkv_last_error());
  }
  pkv_index_destroy(index);
  pkv_codec_destroy(codec);

  static MemoryFile good;
  static const std::string seed = saved({});
  static pkv_index* kept = nullptr;
  static pkv_codec* kept_codec = nullptr;
  if (kept == nullptr) {
    good.fill(as_input(seed));
    check(pkv_index_load_sync(machine().device.get(), machine().stream.get(), good.path().c_str(),
                              &kept, &kept_codec));
  }
  auto g = geometry();
  check(pkv_codec_geometry(kept_codec, &g));
  static const std::string before = content(kept, g, 2);
  status = pkv_index_restore_sync(kept, machine().stream.get(), file.path().c_str());
  if (status == PKV_OK) {
    check(pkv_index_restore_sync(kept, machine().stream.get(), good.path().c_str()));
  } else {
    require(is_refusal(status), "a file is refused with a code for files");
    require_text(pkv_last_error());
  }
  require(content(kept, g, 2) == before, "a refused file leaves the index as it was");
}

}  // namespace pkv::fuzz
