// What is behind the opaque handles of pariskv.h. Each owns its value, or a share of it; what was
// made from another object keeps that alive, so handles may be destroyed in any order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/base/process.h"
#include "core/plan/config.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/registry.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv {

class Cache;     // core/cache/cache.h
class Codec;     // core/codec/codec.h
class Index;     // core/index/index.h
class Plan;      // core/plan/plan.h
class RowCache;  // core/index/row_cache.h

// Texts handed out by an object; they live until it is destroyed. Equal texts are kept once.
class Texts {
 public:
  const char* keep(std::string text) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return texts_.insert(std::move(text)).first->c_str();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::set<std::string> texts_;
};

}  // namespace pkv

struct pkv_runtime {
  std::unique_ptr<pkv::Registry> registry;
  pkv::Texts texts;
  pkv::Birth birth = {};
};

struct pkv_device {
  std::shared_ptr<const pkv::Device> device;
  pkv::Texts texts;
  std::mutex mutex;                          // of allocations
  std::map<void*, pkv::Buffer> allocations;  // by address; what pkv_device_alloc handed out
  pkv::Birth birth = {};
};

struct pkv_stream {
  pkv::Stream stream;
  pkv::Birth birth = {};
};

struct pkv_event {
  pkv::Event event;
  pkv::Birth birth = {};
};

struct pkv_config {
  pkv::Config config;
};

struct pkv_codec {
  std::shared_ptr<const pkv::Codec> codec;
  pkv::Birth birth = {};
};

struct pkv_index {
  std::shared_ptr<pkv::Index> index;
  pkv::Birth birth = {};
};

struct pkv_plan {
  std::unique_ptr<pkv::Plan> plan;
  pkv::Texts texts;
  pkv::Birth birth = {};
};

struct pkv_row_cache {
  std::unique_ptr<pkv::RowCache> cache;
  pkv::Birth birth = {};
};

struct pkv_cache {
  std::unique_ptr<pkv::Cache> cache;
  pkv::Texts texts;
  pkv::Birth birth = {};
};
