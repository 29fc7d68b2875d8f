// The library's handles as owners.
#pragma once

#include <memory>

#include "pariskv/pariskv.h"

namespace pkv::cli {

template <class T, void (*destroy)(T*)>
struct Destroy {
  void operator()(T* handle) const { destroy(handle); }
};

using Runtime = std::unique_ptr<pkv_runtime, Destroy<pkv_runtime, pkv_runtime_destroy>>;
using Device = std::unique_ptr<pkv_device, Destroy<pkv_device, pkv_device_close>>;
using Stream = std::unique_ptr<pkv_stream, Destroy<pkv_stream, pkv_stream_destroy>>;
using Config = std::unique_ptr<pkv_config, Destroy<pkv_config, pkv_config_destroy>>;
using Codec = std::unique_ptr<pkv_codec, Destroy<pkv_codec, pkv_codec_destroy>>;
using Index = std::unique_ptr<pkv_index, Destroy<pkv_index, pkv_index_destroy>>;
using RowCache = std::unique_ptr<pkv_row_cache, Destroy<pkv_row_cache, pkv_row_cache_destroy>>;
using Plan = std::unique_ptr<pkv_plan, Destroy<pkv_plan, pkv_plan_destroy>>;

}  // namespace pkv::cli
