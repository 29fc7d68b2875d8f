// The C API as a machine whose program is the input: sequences of calls with right and wrong
// handles, sizes, dtypes, strides, devices and numbers. Nothing breaks, nothing is lost or leaked,
// and a refused call says why and leaves objects as they were.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/common/hits_room.h"
#include "tests/fuzz/api_machine.h"

namespace pkv::fuzz {
namespace {

constexpr std::size_t kMostObjects = 3;  // of each kind
constexpr int64_t kHeads = 2, kTokens = 24;

constexpr const char* kValues[] = {
    "on",      "off",     "tier",    "graded", "polar4", "scalar4",  "scalar5",   "drop",    "mean",
    "sketch2", "sketch4", "sampled", "own",    "none",   "k_prefix", "isolate",   "refuse",  "keys",
    "picked",  "heads",   "sum",     "group",  "0",      "1",        "2",         "4",       "8",
    "16",      "24",      "32",      "0.5",    "1e-3",   "auto",     "centroids", "1000000", "-1"};

void set_option(Bytes& bytes, pkv_config* config) {
  int32_t count = 0;
  pkv_config_option_count(&count);
  pkv_option_info info{};
  pkv_option_info_init(&info, sizeof info);
  pkv_config_option_info(static_cast<int32_t>(bytes.below(static_cast<uint32_t>(count) + 1)),
                         &info);
  pkv_config_set(config, info.name == nullptr ? "none" : info.name,
                 kValues[bytes.below(std::size(kValues))]);
}

int64_t option(const pkv_config* config, const char* name) {
  const char* text = nullptr;
  if (pkv_config_get(config, name, &text) != PKV_OK) return 0;
  return std::strtoll(text, nullptr, 10);
}

}  // namespace

Machine::Machine() {
  bool is_ready = pkv_runtime_create(nullptr, &runtime_) == PKV_OK;
  for (int i = 0; i < 2; ++i) {
    is_ready = is_ready &&
               pkv_device_open(runtime_, i == 0 ? "cpu" : "cpu_ref", 0, &devices_[i]) == PKV_OK &&
               pkv_stream_create(devices_[i], &streams_[i]) == PKV_OK;
  }
  is_ready = is_ready && pkv_device_set(devices_[0], "threads", "1") == PKV_OK &&
             pkv_config_create("default", &base_) == PKV_OK &&
             pkv_config_set(base_, "head_dim", "16") == PKV_OK &&
             pkv_config_set(base_, "k", "4") == PKV_OK &&
             pkv_config_set(base_, "tail_samples", "64") == PKV_OK;
  require(is_ready, "the machine can be set up");
  auto* numbers = reinterpret_cast<float*>(input_.data());
  for (int64_t i = 0; i < input_.size() / 4; ++i) {
    numbers[i] = static_cast<float>((i * 37) % 251) / 64 - 2;
  }
}

pkv_device* Machine::device(Bytes& bytes) {
  const uint8_t word = bytes.byte();
  return word >= 250 ? nullptr : devices_[word >= 200 ? 1 : 0];
}

pkv_stream* Machine::stream(Bytes& bytes) {
  const uint8_t word = bytes.byte();
  return word >= 250 ? nullptr : streams_[word >= 235 ? 1 : 0];
}

bool Machine::is_done(pkv_status status) {
  if (status == PKV_OK) return true;
  require(std::string_view(pkv_status_name(status)) != "UNKNOWN" && status != PKV_INTERNAL,
          "a refusal has a known code, and is no bug of ours");
  require_text(pkv_last_error());
  return false;
}

void Machine::configure(Bytes& bytes) {
  if (configs_.size() < kMostObjects && bytes.one_in(2)) {
    pkv_config* config = nullptr;
    constexpr const char* kProfiles[] = {"default", "paper", "", "other"};
    if (is_done(pkv_config_create(kProfiles[bytes.below(bytes.byte() >= 240 ? 4 : 2)], &config))) {
      pkv_config_set(config, "head_dim", "16");
      pkv_config_set(config, "k", "4");
      pkv_config_set(config, "tail_samples", "64");
      configs_.push_back(config);
    }
    return;
  }
  pkv_config** config = pick(bytes, configs_);
  if (config == nullptr) {
    require(!is_done(pkv_config_set(nullptr, "k", "1")), "a config is needed to set an option");
    return;
  }
  for (uint32_t i = bytes.below(4); i > 0; --i) set_option(bytes, *config);
}

void Machine::make_codec(Bytes& bytes) {
  if (codecs_.size() >= kMostObjects) return;
  pkv_config** picked = pick(bytes, configs_);
  const pkv_config* config = picked == nullptr ? base_ : *picked;
  const int64_t d = option(config, "head_dim");
  const int64_t dv =
      std::max<int64_t>(8, option(config, "value_dim") == 0 ? d : option(config, "value_dim"));
  pkv_codec* codec = nullptr;
  if (bytes.one_in(3)) {
    std::vector<float> ones(static_cast<std::size_t>(kHeads * 576), 1.0F);
    if (bytes.one_in(16)) ones[bytes.below(64)] = -1;
    pkv_codec_data data{};
    pkv_codec_data_init(&data, sizeof data);
    data.kv_heads = bytes.one_in(16) ? -1 : kHeads;
    data.center = bytes.one_in(16) ? nullptr : ones.data();
    data.balance = ones.data();
    data.value_center = bytes.one_in(2) ? nullptr : ones.data();
    if (is_done(pkv_codec_import(device(bytes), config, &data, &codec))) codecs_.push_back(codec);
    return;
  }
  View keys = view_of(bytes, input_, {kHeads, kTokens, d}, PKV_DTYPE_F32);
  View queries = view_of(bytes, input_, {2 * kHeads, 3, d}, PKV_DTYPE_F16);
  View values = view_of(bytes, input_, {kHeads, kTokens, dv}, PKV_DTYPE_F32);
  const pkv_status status = pkv_codec_fit_sync(device(bytes), stream(bytes), config, keys.get(),
                                               bytes.one_in(2) ? nullptr : queries.get(),
                                               bytes.one_in(4) ? nullptr : values.get(), &codec);
  require((status == PKV_OK) == (codec != nullptr), "a handle comes with success");
  if (is_done(status)) codecs_.push_back(codec);
}

void Machine::make_index(Bytes& bytes) {
  if (indexes_.size() >= kMostObjects) return;
  pkv_codec** codec = pick(bytes, codecs_);
  IndexSlot slot;
  const auto sequences = static_cast<int32_t>(odd_number(bytes, 2));
  const int64_t capacity = odd_number(bytes, 60);
  int64_t needed = 0;
  pkv_device* on = device(bytes);
  // More than a test should take is asked for in pkv_index_bytes alone.
  if (!is_done(
          pkv_index_bytes(on, codec == nullptr ? nullptr : *codec, sequences, capacity, &needed)) ||
      needed > (int64_t{1} << 24)) {
    return;
  }
  const pkv_status status = pkv_index_create(on, *codec, sequences, capacity, &slot.index);
  require((status == PKV_OK) == (slot.index != nullptr), "a handle comes with success");
  if (!is_done(status)) return;
  pkv_geometry_init(&slot.geometry, sizeof slot.geometry);
  require(pkv_codec_geometry(*codec, &slot.geometry) == PKV_OK, "a codec has a geometry");
  indexes_.push_back(slot);
}

void Machine::use_index(Bytes& bytes) {
  IndexSlot* slot = pick(bytes, indexes_);
  if (slot == nullptr) {
    require(!is_done(pkv_index_reset(nullptr, stream(bytes), 0)), "an index is needed");
    return;
  }
  const pkv_geometry& g = slot->geometry;
  const auto sequence = static_cast<int32_t>(odd_number(bytes, bytes.below(2)));
  int64_t before = -1, after = -1;
  const bool has_sequence = pkv_index_length(slot->index, sequence, &before) == PKV_OK;
  const std::string path = folder_.file("index.pkv");
  switch (bytes.below(8)) {
    case 0:
    case 1:
    case 2:
    case 3: {
      const int64_t tokens = bytes.below(20);
      View keys = view_of(bytes, input_, {g.kv_heads, tokens, g.head_dim}, PKV_DTYPE_F32);
      View values = view_of(bytes, input_, {g.kv_heads, tokens, g.value_dim}, PKV_DTYPE_BF16);
      const auto append = bytes.one_in(2) ? pkv_index_append : pkv_index_append_sync;
      const bool is_appended = is_done(append(slot->index, stream(bytes), sequence, keys.get(),
                                              bytes.one_in(4) ? nullptr : values.get()));
      if (!has_sequence) return require(!is_appended, "a sequence outside is refused");
      pkv_index_length(slot->index, sequence, &after);
      require(is_appended ? after >= before : after == before, "a refused append adds nothing");
      break;
    }
    case 4: is_done(pkv_index_reset(slot->index, stream(bytes), sequence)); break;
    case 5: {
      const int64_t begin = odd_number(bytes, 0), count = odd_number(bytes, 5);
      const int64_t room = count < 0 || count > 64 ? 1 : count;
      std::vector<std::vector<uint16_t>> planes(
          8, std::vector<uint16_t>(static_cast<std::size_t>(room * 4 * (g.head_dim + 576))));
      pkv_records records{};
      records.struct_size = bytes.one_in(16) ? 3 : sizeof records;
      records.signs = reinterpret_cast<uint8_t*>(planes[0].data());
      records.vote_factors = planes[1].data();
      records.codes = reinterpret_cast<uint8_t*>(planes[2].data());
      records.factors = bytes.one_in(16) ? nullptr : planes[3].data();
      records.value_signs = reinterpret_cast<uint8_t*>(planes[4].data());
      records.value_codes = reinterpret_cast<uint8_t*>(planes[5].data());
      records.value_factors = planes[6].data();
      records.value_norms = planes[7].data();
      const auto head = static_cast<int32_t>(odd_number(bytes, 1));
      is_done(pkv_index_export_sync(slot->index, stream(bytes), sequence, head, begin, count,
                                    &records));
      break;
    }
    case 6:
      is_done(pkv_index_save_sync(slot->index, stream(bytes), path.c_str(),
                                  bytes.one_in(4) ? 0 : PKV_SAVE_OVERWRITE));
      break;
    default:
      if (bytes.one_in(2)) {
        is_done(pkv_index_restore_sync(slot->index, stream(bytes), path.c_str()));
      } else if (indexes_.size() < kMostObjects) {
        IndexSlot loaded;
        pkv_codec* codec = nullptr;
        if (is_done(pkv_index_load_sync(device(bytes), stream(bytes), path.c_str(), &loaded.index,
                                        &codec))) {
          pkv_geometry_init(&loaded.geometry, sizeof loaded.geometry);
          pkv_codec_geometry(codec, &loaded.geometry);
          pkv_codec_destroy(codec);
          indexes_.push_back(loaded);
        }
      }
  }
}

void Machine::make_plan(Bytes& bytes) {
  if (plans_.size() >= kMostObjects) return;
  IndexSlot* index = pick(bytes, indexes_);
  pkv_config** config = pick(bytes, configs_);
  const pkv_config* options = config == nullptr ? base_ : *config;
  PlanSlot slot;
  pkv_plan_desc desc{};
  pkv_plan_desc_init(&desc, sizeof desc);
  slot.batch = desc.batch = static_cast<int32_t>(odd_number(bytes, 1 + bytes.below(2)));
  slot.query_heads = desc.query_heads = static_cast<int32_t>(odd_number(bytes, 4));
  desc.owns_scratch = bytes.one_in(2) ? 1 : 0;
  desc.max_tokens = odd_number(bytes, 0);
  int32_t sequences[4] = {};
  for (int32_t& sequence : sequences) sequence = static_cast<int32_t>(odd_number(bytes, 0));
  if (desc.batch >= 0 && desc.batch <= 4 && bytes.one_in(2)) desc.sequences = sequences;
  if (!is_done(
          pkv_plan_create(index == nullptr ? nullptr : index->index, options, &desc, &slot.plan))) {
    return;
  }
  slot.geometry = index->geometry;
  slot.k = option(options, "k");
  slot.samples = option(options, "tail_samples");
  pkv_plan_candidates(slot.plan, &slot.candidates);
  if (desc.owns_scratch == 0) pkv_plan_scratch_bytes(slot.plan, &slot.scratch);
  if (slot.batch > 64 || slot.query_heads > 64 || slot.k > 4096) return pkv_plan_destroy(slot.plan);
  plans_.push_back(slot);
}

void Machine::use_plan(Bytes& bytes) {
  PlanSlot* slot = pick(bytes, plans_);
  if (slot == nullptr) {
    require(!is_done(pkv_retrieve(nullptr, stream(bytes), nullptr, nullptr, nullptr)),
            "a plan is needed");
    return;
  }
  const pkv_geometry& g = slot->geometry;
  const int64_t b = slot->batch, h = g.kv_heads, hq = slot->query_heads;
  test::HitsRoom room({b * h, b * hq, slot->k, slot->candidates, slot->samples});
  Memory scratch_memory(slot->scratch + 256);
  const auto base = reinterpret_cast<uintptr_t>(scratch_memory.data());
  void* scratch = slot->scratch == 0 || bytes.one_in(32)
                      ? nullptr
                      : reinterpret_cast<void*>((base + 255) / 256 * 256);
  pkv_hits& hits = room.hits;
  hits.flags = bytes.one_in(32) ? 1 : 0;
  if (bytes.one_in(32)) hits.positions = nullptr;
  if (bytes.one_in(2)) hits.scores = nullptr;
  if (bytes.one_in(16)) hits.estimates = nullptr;
  Memory output(b * hq * std::max<int64_t>(g.value_dim, 8) * 8 + 64);
  View query = view_of(bytes, input_, {b, hq, g.head_dim}, PKV_DTYPE_F32);
  View out = view_of(bytes, output, {b, hq, g.value_dim}, PKV_DTYPE_F32);
  constexpr int64_t kSource = 64;
  Memory source_memory(4 * h * kSource * (g.head_dim + g.value_dim) * 4);
  View keys = view_of(bytes, source_memory, {2, h, kSource, g.head_dim}, PKV_DTYPE_F32);
  View values = view_of(bytes, source_memory, {2, h, kSource, g.value_dim}, PKV_DTYPE_F32);
  if (bytes.one_in(4)) {
    is_done(pkv_retrieve(slot->plan, stream(bytes), query.get(), scratch, &hits));
    return;
  }
  pkv_step step{};
  pkv_step_init(&step, sizeof step);
  pkv_rows_init(&step.source, sizeof step.source);
  step.query = *query.get();
  step.source.keys = *keys.get();
  step.source.values = *values.get();
  if (bytes.one_in(8)) step.source.values.ndim = 0;
  step.hits = bytes.one_in(2) ? nullptr : &hits;
  step.scratch = scratch;
  step.output = *out.get();
  pkv_row_cache** rows = pick(bytes, row_caches_);
  step.row_cache = rows == nullptr ? nullptr : *rows;
  View dense_keys = view_of(bytes, input_, {b, h, 3, g.head_dim}, PKV_DTYPE_F32);
  View dense_values = view_of(bytes, input_, {b, h, 3, g.value_dim}, PKV_DTYPE_F32);
  std::vector<int64_t> lengths(static_cast<std::size_t>(b));
  for (int64_t& length : lengths) length = odd_number(bytes, 2);
  if (bytes.one_in(2)) {
    step.dense_count = static_cast<int32_t>(odd_number(bytes, 1));
    pkv_rows_init(&step.dense[0].rows, sizeof step.dense[0].rows);
    step.dense[0].rows.keys = *dense_keys.get();
    step.dense[0].rows.values = *dense_values.get();
    step.dense[0].lengths = bytes.one_in(2) ? nullptr : lengths.data();
  }
  is_done(pkv_step_run(slot->plan, stream(bytes), &step));
}

void Machine::use_memory(Bytes& bytes) {
  pkv_device* on = device(bytes);
  pkv_stream* in = stream(bytes);
  void* data = nullptr;
  switch (bytes.below(5)) {
    case 0: {
      const int64_t size = odd_number(bytes, 100);
      const auto kind = static_cast<int32_t>(odd_number(bytes, 1 + bytes.below(2)));
      if (!is_done(pkv_device_alloc(on, kind, size, &data))) {
        return require(data == nullptr, "refused memory is NULL");
      }
      is_done(pkv_device_copy(in, data, input_.data(), std::min<int64_t>(size, 64)));
      require(is_done(pkv_device_free(on, data)), "memory goes where it came from");
      require(!is_done(pkv_device_free(on, data)), "memory goes once");
      return;
    }
    case 1: {
      pkv_event* event = nullptr;
      if (events_.size() < kMostObjects && is_done(pkv_event_create(on, &event))) {
        events_.push_back(event);
      }
      return;
    }
    case 2: {
      pkv_event** event = pick(bytes, events_);
      is_done(pkv_event_record(event == nullptr ? nullptr : *event, in));
      is_done(pkv_event_wait(event == nullptr ? nullptr : *event, in));
      return;
    }
    case 3: {
      pkv_stream* borrowed = nullptr;
      if (is_done(pkv_stream_wrap(on, bytes.below(2), &borrowed))) pkv_stream_destroy(borrowed);
      is_done(pkv_stream_sync(in));
      return;
    }
    default: {
      IndexSlot* index = pick(bytes, indexes_);
      pkv_row_cache* cache = nullptr;
      if (row_caches_.size() < kMostObjects &&
          is_done(pkv_row_cache_create(index == nullptr ? nullptr : index->index, in,
                                       static_cast<int32_t>(odd_number(bytes, 1)),
                                       static_cast<int32_t>(odd_number(bytes, 8)), &cache))) {
        row_caches_.push_back(cache);
        is_done(pkv_row_cache_drop(cache, in, static_cast<int32_t>(odd_number(bytes, 0))));
      }
    }
  }
}

void Machine::destroy_one(Bytes& bytes) {
  const auto drop = [&bytes](auto& slots, auto destroy) {
    if (slots.empty()) return;
    const auto at = slots.begin() + bytes.below(static_cast<uint32_t>(slots.size()));
    destroy(*at);
    slots.erase(at);
  };
  switch (bytes.below(7)) {
    case 0: return drop(configs_, pkv_config_destroy);
    case 1: return drop(codecs_, pkv_codec_destroy);
    case 2: return drop(indexes_, [](IndexSlot& slot) { pkv_index_destroy(slot.index); });
    case 3: return drop(plans_, [](PlanSlot& slot) { pkv_plan_destroy(slot.plan); });
    case 4: return drop(row_caches_, pkv_row_cache_destroy);
    case 5: return drop(caches_, [](CacheSlot& slot) { pkv_cache_destroy(slot.cache); });
    default: return drop(events_, pkv_event_destroy);
  }
}

void Machine::destroy_all() {
  while (!configs_.empty()) pkv_config_destroy(configs_.back()), configs_.pop_back();
  while (!codecs_.empty()) pkv_codec_destroy(codecs_.back()), codecs_.pop_back();
  while (!indexes_.empty()) pkv_index_destroy(indexes_.back().index), indexes_.pop_back();
  while (!plans_.empty()) pkv_plan_destroy(plans_.back().plan), plans_.pop_back();
  while (!row_caches_.empty()) pkv_row_cache_destroy(row_caches_.back()), row_caches_.pop_back();
  while (!caches_.empty()) pkv_cache_destroy(caches_.back().cache), caches_.pop_back();
  while (!events_.empty()) pkv_event_destroy(events_.back()), events_.pop_back();
  pools_.clear();
}

void Machine::call(Bytes& bytes) {
  switch (bytes.below(24)) {
    case 0: return configure(bytes);
    case 1:
    case 2: return make_codec(bytes);
    case 3: return make_index(bytes);
    case 4:
    case 5:
    case 6: return use_index(bytes);
    case 7: return make_plan(bytes);
    case 8:
    case 9: return use_plan(bytes);
    case 10: return use_memory(bytes);
    case 11: return make_cache(bytes);
    case 12:
    case 13: return use_sequences(bytes);
    case 14:
    case 15:
    case 16:
    case 17:
    case 18: return append_tokens(bytes);
    case 19: return use_hits(bytes);
    case 20: return look_inside(bytes);
    case 21: return use_files(bytes);
    case 22: return use_pages(bytes);
    default: return destroy_one(bytes);
  }
}

namespace {

// What was run, said when the program ends.
struct Tally {
  ~Tally() {
    std::fprintf(stderr, "sequences %lld, calls %lld, most of a sequence %lld\n", sequences, calls,
                 most);
  }
  long long sequences = 0, calls = 0, most = 0;
};

}  // namespace

void Machine::run(Bytes& bytes) {
  constexpr long long kMostCalls = 100;
  static Tally tally;
  long long calls = 0;
  for (; calls < kMostCalls && !bytes.empty(); ++calls) call(bytes);
  destroy_all();
  ++tally.sequences;
  tally.calls += calls;
  tally.most = std::max(tally.most, calls);
}

std::vector<std::string> seeds() {
  // Programs that make things and use them, then words of a simple generator.
  std::vector<std::string> all;
  const auto add = [&all](std::initializer_list<int> calls, uint8_t argument, int arguments) {
    std::string program;
    for (const int number : calls) {
      program += static_cast<char>(number);
      program.append(static_cast<std::size_t>(arguments), static_cast<char>(argument));
    }
    all.push_back(program);
  };
  for (const uint8_t argument : {1, 16, 40, 100}) {
    add({1, 3, 4, 4, 7, 8, 8, 5, 23}, argument, 12);
    add({11, 12, 14, 15, 14, 16, 19, 20, 13, 21}, argument, 20);
  }
  uint32_t word = 1;
  for (int i = 0; i < 32; ++i) {
    std::string program;
    for (int k = 0; k < (i < 24 ? 700 : 2500); ++k) {
      word = word * 1664525 + 1013904223;
      program += static_cast<char>(word >> 24);
    }
    all.push_back(program);
  }
  return all;
}

void run(Input input) {
  static Machine* const machine = new Machine;
  Bytes bytes(input);
  machine->run(bytes);
}

}  // namespace pkv::fuzz
