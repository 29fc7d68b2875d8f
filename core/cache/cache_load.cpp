// Loading sequences into a cache. docs/format.md, section 3.
// What is wrong with a file is found before anything changes, except damaged rows, fits and
// queries: they are read into fresh slots, which are free again after a failure.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/cache/cache_file.h"
#include "core/index/file_sections.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

// A product or sum that cannot fit is larger than any section.
int64_t capped(std::optional<int64_t> bytes) { return bytes.value_or(INT64_MAX); }
int64_t times(int64_t count, int64_t bytes) { return capped(checked_mul(count, bytes)); }

struct Field {
  std::string_view name;
  int64_t file, cache;
};

absl::Status compare(const PkvFile& file, std::span<const Field> fields) {
  for (const Field& field : fields) {
    if (field.file == field.cache) continue;
    return absl::FailedPreconditionError(str_cat(file.path(), ": ", field.name, " of the file=",
                                                 field.file, ", of the cache=", field.cache));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Cache::compare_file(const PkvFile& file, const FileGeometry& g,
                                 const FileCache& c) const {
  const FileGeometry own = file_geometry(g.sequences);
  const FileCache mine = file_cache(c.sequences);
  const int32_t query_type = pools_->query_type;
  const Field fields[] = {
      {"subspace", g.subspace, own.subspace},
      {"kv_heads", g.kv_heads, own.kv_heads},
      {"head_dim", g.head_dim, own.head_dim},
      {"value_dim", g.value_dim, own.value_dim},
      {"v_source", g.v_source, own.v_source},
      {"codec", g.codec, own.codec},
      {"vote", g.vote, own.vote},
      {"rounds", g.rounds, own.rounds},
      {"sketch_bits", g.sketch_bits, own.sketch_bits},
      {"sketch_stride", g.sketch_stride, own.sketch_stride},
      {"value_norm", g.value_norm, own.value_norm},
      {"center", g.center, own.center},
      {"balance", g.balance, own.balance},
      {"fit_picked", g.fit_picked, own.fit_picked},
      {"seed", static_cast<int64_t>(g.seed), static_cast<int64_t>(own.seed)},
      {"levels", static_cast<int64_t>(g.levels), static_cast<int64_t>(own.levels)},
      {"sequences of GEOM and CSHP", g.sequences, c.sequences},
      {"layers", c.layers, mine.layers},
      {"query_heads", c.query_heads, mine.query_heads},
      {"dtype", c.dtype, mine.dtype},
      {"dtype of queries", c.query_type,
       c.query_type == 0 || query_type == 0 ? c.query_type : query_type},
      {"fit_positions", c.fit_positions, mine.fit_positions},
      {"refits", c.refits, mine.refits},
      {"reserved", c.reserved, 0},
      {"sink", c.sink, mine.sink},
      {"local", c.local, mine.local},
      {"interval", c.interval, mine.interval},
      {"dense_below", c.dense_below, mine.dense_below}};
  return compare(file, fields);
}

absl::Status Cache::load_layers(const PkvFile& file) const {
  std::vector<FileLayer> file_layers(layers_.size());
  PKV_RETURN_IF_ERROR(file.check_size(
      kLayersSection, static_cast<int64_t>(file_layers.size() * sizeof(FileLayer)), true));
  PKV_RETURN_IF_ERROR(file.read_section(kLayersSection, file_layers.data()));
  std::vector<float> imported;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = *layers_[i];
    const std::string name = str_cat("layer ", i, ": ");
    const std::string names[] = {name + "attention", name + "window", name + "imported codec"};
    const Field fields[] = {{names[0], file_layers[i].attention, layer.policy().attention},
                            {names[1], file_layers[i].window, layer.policy().window},
                            {names[2], file_layers[i].has_imported, layer.has_imported() ? 1 : 0}};
    PKV_RETURN_IF_ERROR(compare(file, fields));
    if (!layer.has_imported()) continue;
    const std::vector<float> numbers = numbers_of(&*layer.imported());
    imported.insert(imported.end(), numbers.begin(), numbers.end());
  }
  const auto bytes = static_cast<int64_t>(imported.size() * sizeof(float));
  PKV_RETURN_IF_ERROR(file.check_size(kImportedSection, bytes, true));
  std::vector<float> numbers(imported.size());
  PKV_RETURN_IF_ERROR(file.read_section(kImportedSection, numbers.data()));
  if (bytes == 0 ||
      std::memcmp(numbers.data(), imported.data(), static_cast<std::size_t>(bytes)) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      str_cat(file.path(), ": imported codec of the file differs from that of the cache"));
}

// Lengths and counts, and that the other sections are as long as they say.
absl::Status Cache::load_states(const PkvFile& file, const FileCache& cache,
                                std::vector<FileState>& states) const {
  const int64_t query_bytes =
      int64_t{shape_.desc.query_heads} * shape_.geometry.head_dim * dtype_bytes(cache.query_type);
  const int64_t entries = int64_t{cache.sequences} * cache.layers;
  PKV_RETURN_IF_ERROR(file.check_size(kStatesSection, times(entries, sizeof(FileState)), true));
  states.resize(static_cast<std::size_t>(entries));
  PKV_RETURN_IF_ERROR(file.read_section(kStatesSection, states.data()));
  int64_t tokens = 0, fits = 0, queries = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const FileState& state = states[i];
    const int64_t limit = format::kMaxTokens;
    if (state.tokens < 0 || state.tokens > limit || state.fits < 0 || state.fits > limit ||
        state.queries < 0 || state.queries > state.tokens) {
      return file.damaged(
          kStatesSection,
          str_cat("entry ", i, ": tokens=", state.tokens, " fits=", state.fits,
                  " queries=", state.queries, ", accepted: 0..", limit, ", queries up to tokens"));
    }
    if (state.tokens > shape_.desc.capacity) {
      return absl::ResourceExhaustedError(str_cat(file.path(), ": needs ", state.tokens,
                                                  " tokens, has room for ", shape_.desc.capacity));
    }
    tokens += state.tokens;
    fits += state.fits;
    queries += state.queries;
  }
  const int64_t number_bytes = fit_numbers() * int64_t{sizeof(float)};
  PKV_RETURN_IF_ERROR(
      file.check_size(kFitsSection, times(fits, int64_t{sizeof(FileFit)} + number_bytes), true));
  PKV_RETURN_IF_ERROR(file.check_size(
      kQueriesSection, times(queries, int64_t{sizeof(int64_t)} + query_bytes), true));
  return file.check_size(kRowsSection,
                         times(tokens, shape_.geometry.kv_heads * shape_.token_bytes()), true);
}

absl::Status Cache::load_fits(const PkvFile& file, SectionStream& section, Layer& layer,
                              int32_t sequence, const FileState& state) {
  const pkv_geometry& g = shape_.geometry;
  const auto keys = static_cast<std::size_t>(g.kv_heads) * static_cast<std::size_t>(g.head_dim);
  const int64_t zone = layer.is_sparse() ? zone_of(shape_.rules, state.tokens) : 0;
  std::vector<std::shared_ptr<Fit>> fits;
  int64_t last = 0;
  std::vector<float> numbers(static_cast<std::size_t>(fit_numbers()));
  for (int64_t i = 0; i < state.fits; ++i) {
    FileFit head{};
    PKV_RETURN_IF_ERROR(section.read(&head, sizeof head));
    PKV_RETURN_IF_ERROR(
        section.read(numbers.data(), static_cast<int64_t>(numbers.size() * sizeof(float))));
    if (head.length <= last || head.length > zone || head.length % shape_.rules.interval != 0 ||
        head.has_numbers < 0 || head.has_numbers > 1) {
      return file.damaged(kFitsSection, str_cat("fit ", i, ": length=", head.length,
                                                ", accepted: ascending up to the zone's ", zone));
    }
    last = head.length;
    fits.push_back(layer.make_fit(head.length));
    if (head.has_numbers == 0) continue;
    const std::span<const float> all(numbers);
    auto params = CodecParams::create(g, all.subspan(0, keys), all.subspan(keys, keys),
                                      all.subspan(2 * keys));
    if (!params.ok()) return file.damaged(kFitsSection, to_std(params.status().message()));
    fits.back()->numbers = *std::move(params);
  }
  layer.set_fits(sequence, std::move(fits));
  return absl::OkStatus();
}

absl::Status Cache::load_queries(const Stream& stream, const PkvFile& file, SectionStream& section,
                                 Layer& layer, int32_t sequence, const FileState& state,
                                 pkv_dtype query_type) {
  if (state.queries == 0) return absl::OkStatus();
  const int64_t extents[] = {1, shape_.desc.query_heads, shape_.geometry.head_dim};
  const int64_t bytes = extents[1] * extents[2] * dtype_bytes(query_type);
  PKV_ASSIGN_OR_RETURN(const Buffer room, Buffer::create(shape_.device, PKV_MEMORY_HOST, bytes));
  const WaitAtEnd copies(stream);
  pkv_tensor tensor{};
  tensor.data = room.data();
  tensor.device_type = shape_.device->info().device_type;
  tensor.device_id = shape_.device->info().device_id;
  tensor.ndim = 3;
  tensor.dtype = query_type;
  tensor.shape = extents;
  PKV_ASSIGN_OR_RETURN(
      tensors_.queries,
      TensorView::check("queries", &tensor, {at_least("n", 0), at_least("hq", 0), at_least("d", 0)},
                        kFloatTypes));
  PKV_RETURN_IF_ERROR(prepare_queries());
  int64_t last = -1;
  for (int64_t i = 0; i < state.queries; ++i) {
    int64_t position = 0;
    PKV_RETURN_IF_ERROR(section.read(&position, sizeof position));
    PKV_RETURN_IF_ERROR(section.read(room.data(), bytes));
    if (position <= last || position >= state.tokens) {
      return file.damaged(kQueriesSection, str_cat("position ", position, ", accepted: above ",
                                                   last, ", below ", state.tokens));
    }
    last = position;
    PKV_RETURN_IF_ERROR(layer.write_queries(stream, sequence, position, *tensors_.queries, 0, 1));
    PKV_RETURN_IF_ERROR(stream.sync());
  }
  return absl::OkStatus();
}

absl::Status Cache::load_rows(const Stream& stream, SectionStream& section, Layer& layer,
                              int32_t sequence, int64_t tokens) {
  const int64_t heads = shape_.geometry.kv_heads;
  const int64_t most = std::min(kFileChunkTokens, tokens);
  PKV_ASSIGN_OR_RETURN(const Buffer chunk, Buffer::create(shape_.device, PKV_MEMORY_HOST,
                                                          most * heads * shape_.token_bytes()));
  const WaitAtEnd appends(stream);
  for (int64_t begin = 0; begin < tokens; begin += most) {
    const int64_t count = std::min(most, tokens - begin);
    PKV_RETURN_IF_ERROR(section.read(chunk.data(), count * heads * shape_.token_bytes()));
    const RowRun run = chunk_run(chunk.as<std::byte>(), count, 0, count);
    const auto view = [&](std::byte* data, int64_t width, int64_t head_stride) {
      const int64_t extents[] = {count, heads, width};
      const int64_t strides[] = {width, head_stride, 1};
      pkv_tensor tensor{};
      tensor.data = data;
      tensor.device_type = shape_.device->info().device_type;
      tensor.device_id = shape_.device->info().device_id;
      tensor.ndim = 3;
      tensor.dtype = shape_.desc.dtype;
      tensor.shape = extents;
      tensor.strides = strides;
      return TensorView::check("rows", &tensor,
                               {at_least("n", 0), at_least("h", 0), at_least("d", 0)}, kFloatTypes);
    };
    PKV_ASSIGN_OR_RETURN(const TensorView keys,
                         view(run.keys, shape_.key_elements, run.key_head_stride));
    std::optional<TensorView> values;
    if (run.values != nullptr) {
      PKV_ASSIGN_OR_RETURN(values, view(run.values, shape_.value_elements, run.value_head_stride));
    }
    Layer::Input input{};
    input.sequences = {&sequence, 1};
    input.counts = {&count, 1};
    input.keys = &keys;
    input.keeps_bad = true;  // the file may be damaged, which its checksum tells
    input.values = values ? &*values : nullptr;
    PKV_RETURN_IF_ERROR(layer.append(stream, input));
    PKV_RETURN_IF_ERROR(stream.sync());  // the chunk is used again
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Cache::load_sync(const Stream& stream, const std::string& path,
                                                      int32_t room) {
  const std::lock_guard lock(mutex_);
  PKV_ASSIGN_OR_RETURN(InputFile input, InputFile::open(path));
  PkvFile file(std::move(input));
  PKV_RETURN_IF_ERROR(file.read_front());
  for (const FileSection& section : file.table()) {
    constexpr SectionType kKnown[] = {kGeometrySection, kCacheSection,  kLayersSection,
                                      kImportedSection, kStatesSection, kFitsSection,
                                      kQueriesSection,  kRowsSection};
    if ((section.flags & kSectionOptional) != 0 ||
        std::find(std::begin(kKnown), std::end(kKnown), section.type) != std::end(kKnown)) {
      continue;
    }
    return absl::FailedPreconditionError(str_cat(path, ": section ",
                                                 quote({section.type.data(), section.type.size()}),
                                                 " is none of a cache and is not optional"));
  }
  FileGeometry geometry{};
  FileCache cache{};
  PKV_RETURN_IF_ERROR(file.check_size(kGeometrySection, sizeof geometry, true));
  PKV_RETURN_IF_ERROR(file.read_section(kGeometrySection, &geometry));
  PKV_RETURN_IF_ERROR(file.check_size(kCacheSection, sizeof cache, true));
  PKV_RETURN_IF_ERROR(file.read_section(kCacheSection, &cache));
  PKV_RETURN_IF_ERROR(compare_file(file, geometry, cache));
  PKV_RETURN_IF_ERROR(load_layers(file));
  std::vector<FileState> states;
  if (cache.sequences < 0 || cache.sequences > 65536) {
    return file.damaged(kCacheSection, str_cat("sequences=", cache.sequences));
  }
  PKV_RETURN_IF_ERROR(load_states(file, cache, states));
  std::vector<int32_t> free;
  for (int32_t s = 0; s < shape_.desc.sequences; ++s) {
    if (!slots_[static_cast<std::size_t>(s)].is_used) free.push_back(s);
  }
  const int64_t places = std::min<int64_t>(room, static_cast<int64_t>(free.size()));
  if (cache.sequences > places) {
    return absl::ResourceExhaustedError(
        str_cat(path, ": needs ", cache.sequences, " sequences, has room for ", places));
  }
  free.resize(static_cast<std::size_t>(cache.sequences));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i]->has_pool()) continue;
    return absl::FailedPreconditionError(
        str_cat("layer ", i, " has its rows in the caller's pages, accepted: pages of its own"));
  }
  PKV_RETURN_IF_ERROR(begin(stream));
  SectionStream fits = file.stream(kFitsSection);
  SectionStream queries = file.stream(kQueriesSection);
  SectionStream rows = file.stream(kRowsSection);
  const auto read = [&]() -> absl::Status {
    auto state = states.begin();
    for (const int32_t s : free) {
      for (const auto& layer : layers_) {
        PKV_RETURN_IF_ERROR(load_fits(file, fits, *layer, s, *state));
        PKV_RETURN_IF_ERROR(
            load_queries(stream, file, queries, *layer, s, *state, cache.query_type));
        PKV_RETURN_IF_ERROR(load_rows(stream, rows, *layer, s, state->tokens));
        ++state;
      }
    }
    PKV_RETURN_IF_ERROR(fits.finish());
    PKV_RETURN_IF_ERROR(queries.finish());
    PKV_RETURN_IF_ERROR(rows.finish());
    PKV_RETURN_IF_ERROR(file.check_unknown());
    for (const int32_t s : free) {
      for (const auto& layer : layers_) {
        const std::vector<BadToken>& bad = layer->state(s).bad;
        if (bad.empty() || shape_.codec_options.isolate) continue;
        return absl::FailedPreconditionError(
            str_cat(path, ": a row at position ", bad.front().position, ", KV head ",
                    bad.front().head, " is not finite, accepted: with nonfinite=isolate"));
      }
    }
    return absl::OkStatus();
  };
  const absl::Status status = end(stream, within_memory(read));
  if (!status.ok()) {
    for (const int32_t s : free) clear(stream, s).IgnoreError();
    return status;
  }
  for (const int32_t s : free) slots_[static_cast<std::size_t>(s)].is_used = true;
  return free;
}

}  // namespace pkv
