// Exported functions of section "Codec".
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/codec/codec.h"
#include "core/pipeline/checks.h"
#include "pariskv/pariskv.h"

namespace {

std::span<const float> floats(const float* data, int64_t rows, int64_t width) {
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(rows * width)};
}

}  // namespace

pkv_status pkv_geometry_init(pkv_geometry* geometry, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(geometry);
    return pkv::init_struct(geometry, struct_size, {}, "pkv_geometry");
  });
}

pkv_status pkv_codec_data_init(pkv_codec_data* data, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(data);
    return pkv::init_struct(data, struct_size, {}, "pkv_codec_data");
  });
}

pkv_status pkv_codec_fit_sync(pkv_device* device, pkv_stream* stream, const pkv_config* config,
                              const pkv_tensor* keys, const pkv_tensor* queries,
                              const pkv_tensor* values, pkv_codec** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(config);
    PKV_REQUIRE(keys);
    PKV_RETURN_IF_ERROR(stream->stream.check_device(device->device, "given"));
    auto codec = std::make_unique<pkv_codec>();
    PKV_ASSIGN_OR_RETURN(
        codec->codec, pkv::Codec::fit_sync(stream->stream, config->config, *keys, queries, values));
    *out = codec.release();
    return absl::OkStatus();
  });
}

void pkv_codec_destroy(pkv_codec* codec) { pkv::destroy(codec); }

pkv_status pkv_codec_import(pkv_device* device, const pkv_config* config,
                            const pkv_codec_data* data, pkv_codec** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_REQUIRE(config);
    PKV_REQUIRE(data);
    PKV_ASSIGN_OR_RETURN(const pkv_codec_data given,
                         pkv::read_struct(data, pkv_codec_data{}, "pkv_codec_data"));
    PKV_ASSIGN_OR_RETURN(const pkv_geometry geometry, config->config.geometry(given.kv_heads));
    const int64_t heads = geometry.kv_heads;
    const int64_t sketch_dim = geometry.sketch_bits == 0 ? 0 : geometry.value_dim;
    PKV_RETURN_IF_ERROR(pkv::check_pointer("center", given.center, heads * geometry.head_dim));
    PKV_RETURN_IF_ERROR(pkv::check_pointer("balance", given.balance, heads * geometry.head_dim));
    PKV_RETURN_IF_ERROR(pkv::check_pointer("value_center", given.value_center, heads * sketch_dim));
    if (sketch_dim == 0) {
      PKV_RETURN_IF_ERROR(
          pkv::check_absent("value_center", given.value_center, "without a value sketch"));
    }
    PKV_ASSIGN_OR_RETURN(
        pkv::CodecParams numbers,
        pkv::CodecParams::create(geometry, floats(given.center, heads, geometry.head_dim),
                                 floats(given.balance, heads, geometry.head_dim),
                                 floats(given.value_center, heads, sketch_dim)));
    auto codec = std::make_unique<pkv_codec>();
    PKV_ASSIGN_OR_RETURN(codec->codec, pkv::Codec::create(device->device, std::move(numbers),
                                                          config->config.codec_options()));
    *out = codec.release();
    return absl::OkStatus();
  });
}

pkv_status pkv_codec_export(const pkv_codec* codec, pkv_codec_data* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(codec);
    const pkv::CodecParams& numbers = codec->codec->numbers();
    pkv_codec_data data{};
    data.kv_heads = numbers.geometry().kv_heads;
    data.center = numbers.center().data();
    data.balance = numbers.balance().data();
    data.value_center = numbers.value_center().empty() ? nullptr : numbers.value_center().data();
    return pkv::write_struct(out, data, "pkv_codec_data");
  });
}

pkv_status pkv_codec_geometry(const pkv_codec* codec, pkv_geometry* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(codec);
    return pkv::write_struct(out, codec->codec->geometry(), "pkv_geometry");
  });
}
