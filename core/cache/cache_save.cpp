// Saving sequences of a cache. docs/format.md, section 3.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/cache/cache_file.h"
#include "core/index/file_geometry.h"
#include "core/index/file_writer.h"

namespace pkv {

FileCache Cache::file_cache(int32_t sequences) const {
  const pkv_cache_desc& d = shape_.desc;
  FileCache f{};
  f.layers = d.layers;
  f.sequences = sequences;
  f.query_heads = d.query_heads;
  f.dtype = d.dtype;
  f.query_type = pools_->query_type;
  f.fit_positions = d.fit_positions;
  f.refits = d.refits;
  f.sink = d.sink;
  f.local = d.local;
  f.interval = d.interval;
  f.dense_below = d.dense_below;
  return f;
}

FileGeometry Cache::file_geometry(int32_t sequences) const {
  return pkv::file_geometry(shape_.geometry, shape_.codec_options, sequences, shape_.desc.capacity);
}

int64_t Cache::fit_numbers() const {
  const pkv_geometry& g = shape_.geometry;
  return int64_t{g.kv_heads} * (2 * int64_t{g.head_dim} + (g.sketch_bits == 0 ? 0 : g.value_dim));
}

// Centre, balance, value centre.
std::vector<float> Cache::numbers_of(const CodecParams* numbers) const {
  std::vector<float> all(static_cast<std::size_t>(fit_numbers()));
  if (numbers == nullptr) return all;
  auto to = all.begin();
  for (const std::span<const float> part :
       {numbers->center(), numbers->balance(), numbers->value_center()}) {
    to = std::copy(part.begin(), part.end(), to);
  }
  return all;
}

absl::Status Cache::save_sync(const Stream& stream, int32_t sequence, const std::string& path,
                              bool may_overwrite) {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> sequences;
  if (sequence >= 0) {
    PKV_RETURN_IF_ERROR(check_slot(sequence));
    sequences.push_back(sequence);
  } else if (sequence < -1) {
    return check_sequence(sequence);
  }
  for (int32_t s = 0; sequence == -1 && s < shape_.desc.sequences; ++s) {
    if (slots_[static_cast<std::size_t>(s)].is_used) sequences.push_back(s);
  }
  PKV_RETURN_IF_ERROR(begin_sync(stream));

  const auto count = static_cast<int32_t>(sequences.size());
  std::vector<FileLayer> file_layers;
  std::vector<FileState> states;
  int64_t imported = 0, fits = 0, queries = 0, tokens = 0;
  for (const auto& layer : layers_) {
    file_layers.push_back(
        {layer->policy().attention, layer->has_imported() ? 1 : 0, layer->policy().window});
    imported += layer->has_imported() ? 1 : 0;
  }
  for (const int32_t s : sequences) {
    for (const auto& layer : layers_) {
      const SequenceState& state = layer->state(s);
      const auto held = static_cast<int64_t>(state.fits.size());
      const int64_t kept = state.queries.count(0, state.tokens);
      states.push_back({state.tokens, held, kept});
      fits += held;
      queries += kept;
      tokens += state.tokens;
    }
  }
  const int64_t number_bytes = fit_numbers() * int64_t{sizeof(float)};
  const SectionSize sizes[] = {
      {kGeometrySection, sizeof(FileGeometry)},
      {kCacheSection, sizeof(FileCache)},
      {kLayersSection, static_cast<int64_t>(file_layers.size() * sizeof(FileLayer))},
      {kImportedSection, imported * number_bytes},
      {kStatesSection, static_cast<int64_t>(states.size() * sizeof(FileState))},
      {kFitsSection, fits * (int64_t{sizeof(FileFit)} + number_bytes)},
      {kQueriesSection, queries * (int64_t{sizeof(int64_t)} + pools_->query_bytes)},
      {kRowsSection, tokens * shape_.geometry.kv_heads * shape_.token_bytes()}};
  PKV_ASSIGN_OR_RETURN(PkvWriter file, PkvWriter::create(path, may_overwrite, sizes));
  const FileGeometry geometry = file_geometry(count);
  const FileCache cache = file_cache(count);
  PKV_RETURN_IF_ERROR(file.write(kGeometrySection, &geometry, sizeof geometry));
  PKV_RETURN_IF_ERROR(file.write(kCacheSection, &cache, sizeof cache));
  PKV_RETURN_IF_ERROR(file.write(kLayersSection, file_layers.data(), sizes[2].bytes));
  PKV_RETURN_IF_ERROR(file.write(kStatesSection, states.data(), sizes[4].bytes));
  for (const auto& layer : layers_) {
    if (!layer->has_imported()) continue;
    const std::vector<float> numbers = numbers_of(&*layer->imported());
    PKV_RETURN_IF_ERROR(file.write(kImportedSection, numbers.data(), number_bytes));
  }
  for (const int32_t s : sequences) {
    for (const auto& layer : layers_) {
      PKV_RETURN_IF_ERROR(save_state(stream, *layer, layer->state(s), file));
    }
  }
  return file.commit();
}

absl::Status Cache::save_state(const Stream& stream, const Layer& layer, const SequenceState& state,
                               PkvWriter& file) {
  for (const auto& fit : state.fits) {
    const FileFit head = {fit->length, fit->numbers ? 1 : 0};
    const std::vector<float> numbers = numbers_of(fit->numbers ? &*fit->numbers : nullptr);
    PKV_RETURN_IF_ERROR(file.write(kFitsSection, &head, sizeof head));
    PKV_RETURN_IF_ERROR(file.write(kFitsSection, numbers.data(),
                                   static_cast<int64_t>(numbers.size() * sizeof(float))));
  }
  absl::Status status;
  state.queries.for_each(pools_->query_bytes, [&](int64_t position, const std::byte* query) {
    if (status.ok()) status = file.write(kQueriesSection, &position, sizeof position);
    if (status.ok()) status = file.write(kQueriesSection, query, pools_->query_bytes);
  });
  PKV_RETURN_IF_ERROR(status);
  const int64_t heads = shape_.geometry.kv_heads;
  const int64_t most = std::min(kFileChunkTokens, state.tokens);
  PKV_ASSIGN_OR_RETURN(const Buffer chunk, Buffer::create(shape_.device, PKV_MEMORY_HOST,
                                                          most * heads * shape_.token_bytes()));
  const WaitAtEnd copies(stream);
  for (int64_t begin = 0; begin < state.tokens; begin += most) {
    const int64_t tokens = std::min(most, state.tokens - begin);
    for (int64_t done = 0; done < tokens;) {
      const RowRun from = layer.run_at(state, begin + done, tokens - done);
      const RowRun to = chunk_run(chunk.as<std::byte>(), tokens, done, from.tokens);
      PKV_RETURN_IF_ERROR(layer.copy_run(stream, from, to));
      done += from.tokens;
    }
    PKV_RETURN_IF_ERROR(stream.sync());
    PKV_RETURN_IF_ERROR(
        file.write(kRowsSection, chunk.data(), tokens * heads * shape_.token_bytes()));
  }
  return absl::OkStatus();
}

// Tokens `done` .. of a chunk of `tokens`: K [h, tokens, d], then V [h, tokens, dv].
RowRun Cache::chunk_run(std::byte* chunk, int64_t tokens, int64_t done, int64_t count) const {
  const int64_t keys = shape_.key_elements;
  const int64_t values = shape_.value_elements;
  RowRun run{};
  run.tokens = count;
  run.keys = chunk + done * keys * shape_.element_bytes;
  run.key_head_stride = tokens * keys;
  run.key_token_stride = keys;
  if (values > 0) {
    run.values =
        chunk + (shape_.geometry.kv_heads * tokens * keys + done * values) * shape_.element_bytes;
    run.value_head_stride = tokens * values;
    run.value_token_stride = values;
  }
  return run;
}

}  // namespace pkv
