#include "tools/stored_index.h"

#include "tools/status.h"

namespace pkv::cli {
namespace {

const char* on_off(bool is_on) { return is_on ? "on" : "off"; }

const char* codec_name(int32_t codec) {
  if (codec == PKV_CODEC_POLAR4) return "polar4";
  return codec == PKV_CODEC_SCALAR4 ? "scalar4" : "scalar5";
}

const char* v_source_name(int32_t source) {
  if (source == PKV_V_SOURCE_OWN) return "own";
  return source == PKV_V_SOURCE_K_PREFIX ? "k_prefix" : "none";
}

}  // namespace

absl::StatusOr<int64_t> StoredIndex::length(int32_t sequence) const {
  int64_t length = 0;
  CLI_RETURN_IF_ERROR(from_library(pkv_index_length(index.get(), sequence, &length),
                                   About::kOptions, fmt::format("--sequence={}", sequence)));
  return length;
}

absl::StatusOr<StoredIndex> load_index(const Engine& engine, const std::string& path) {
  StoredIndex stored;
  stored.path = path;
  pkv_index* index = nullptr;
  pkv_codec* codec = nullptr;
  CLI_RETURN_IF_ERROR(from_library(
      pkv_index_load_sync(engine.device(), engine.stream(), path.c_str(), &index, &codec),
      About::kInput, path));
  stored.index.reset(index);
  stored.codec.reset(codec);
  CLI_RETURN_IF_ERROR(from_library(pkv_geometry_init(&stored.geometry, sizeof stored.geometry),
                                   About::kInput, path));
  CLI_RETURN_IF_ERROR(
      from_library(pkv_codec_geometry(codec, &stored.geometry), About::kInput, path));
  CLI_ASSIGN_OR_RETURN(stored.file, read_pkv_file(path));
  return stored;
}

OptionValues codec_values(const StoredIndex& stored) {
  const pkv_geometry& g = stored.geometry;
  OptionValues values;
  values["head_dim"] = std::to_string(g.head_dim);
  values["value_dim"] = std::to_string(g.value_dim);
  values["v_source"] = v_source_name(g.v_source);
  values["codec"] = codec_name(g.codec);
  values["vote"] = g.vote == PKV_VOTE_TIER ? "tier" : "graded";
  values["center"] = on_off(stored.file.center);
  values["balance"] = on_off(stored.file.balance);
  values["rounds"] = std::to_string(g.rounds);
  values["seed"] = std::to_string(g.seed);
  values["value_norm"] = on_off(g.value_norm != 0);
  values["nonfinite"] = stored.file.isolates ? "isolate" : "refuse";
  values["fit"] = stored.file.fits_picked ? "picked" : "keys";
  if (g.sketch_stride > 1) {
    values["tail"] = "sampled";
  } else if (g.sketch_bits != 0) {
    values["tail"] = fmt::format("sketch{}", g.sketch_bits);
  }
  return values;
}

absl::StatusOr<Config> config_of(const StoredIndex& stored, const std::string& profile,
                                 const OptionValues& given) {
  OptionValues values = codec_values(stored);
  // A config cannot ask for a tail other than drop where there are no values.
  if (stored.geometry.sketch_bits == 0) values["tail"] = "drop";
  for (const auto& [name, value] : given) values[name] = value;
  return make_config(profile, values);
}

}  // namespace pkv::cli
