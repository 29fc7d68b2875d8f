#include "tests/unit/pipeline/deferred_backend.h"

#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "backends/cpu_ref/device.h"
#include "core/runtime/host.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

struct State {
  pkv_backend table{};
  const pkv_backend* real = nullptr;
  DeferredFaults faults;
  std::deque<std::function<pkv_status()>> work;
};
State& state() {
  static State only;
  return only;
}

bool fails(int& countdown) { return countdown > 0 && --countdown == 0; }

pkv_status defer(std::function<pkv_status()> work) {
  state().work.push_back(std::move(work));
  return PKV_OK;
}

// A tensor whose shape and strides were only lent for the call.
struct Kept {
  std::vector<int64_t> shape, strides;
  void keep(pkv_tensor& tensor) {
    if (tensor.ndim == 0) return;
    shape.assign(tensor.shape, tensor.shape + tensor.ndim);
    tensor.shape = shape.data();
    if (tensor.strides == nullptr) return;
    strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    tensor.strides = strides.data();
  }
};

std::vector<pkv_tensor*> tensors(pkv_fit_args& a) { return {&a.keys, &a.queries, &a.values}; }
std::vector<pkv_tensor*> tensors(pkv_encode_args& a) { return {&a.keys, &a.values}; }
std::vector<pkv_tensor*> tensors(pkv_vote_args& a) { return {&a.queries}; }
std::vector<pkv_tensor*> tensors(pkv_select_args&) { return {}; }
std::vector<pkv_tensor*> tensors(pkv_rerank_args& a) { return {&a.queries}; }
std::vector<pkv_tensor*> tensors(pkv_fetch_args& a) {
  return {&a.source_keys, &a.source_values, &a.keys, &a.values};
}
std::vector<pkv_tensor*> tensors(pkv_attend_args& a) {
  std::vector<pkv_tensor*> all = {&a.queries, &a.row_keys, &a.row_values, &a.output};
  for (int32_t p = 0; p < a.part_count; ++p) {
    all.push_back(&a.parts[p].keys);
    all.push_back(&a.parts[p].values);
  }
  return all;
}

pkv_geometry* geometry_of(pkv_fit_args& a, pkv_geometry& kept) {
  kept = *a.geometry;
  a.geometry = &kept;
  return &kept;
}
pkv_geometry* geometry_of(pkv_select_args&, pkv_geometry&) { return nullptr; }
pkv_geometry* geometry_of(pkv_fetch_args&, pkv_geometry&) { return nullptr; }
template <class Args>
pkv_geometry* geometry_of(Args& a, pkv_geometry& kept) {
  kept = *a.codec.geometry;
  a.codec.geometry = &kept;
  return &kept;
}

template <class Args>
struct Later {
  explicit Later(const Args& given) : args(given) {
    const auto all = tensors(args);
    kept.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) kept[i].keep(*all[i]);
    geometry_of(args, geometry);
  }
  Args args;
  std::vector<Kept> kept;
  pkv_geometry geometry{};
};

template <auto kStage, class Args>
pkv_status run_later(pkv_backend_device* device, pkv_backend_stream* stream, const Args* args,
                     void* scratch) {
  const auto later = std::make_shared<Later<Args>>(*args);
  return defer([=] { return (state().real->*kStage).run(device, stream, &later->args, scratch); });
}

pkv_status run_encode(pkv_backend_device* device, pkv_backend_stream* stream,
                      const pkv_encode_args* args, void* scratch) {
  // Enqueues, and then notices a failure: what lies in memory by then is anybody's guess.
  run_later<&pkv_backend::encode>(device, stream, args, scratch);
  return fails(state().faults.fail_encode) ? PKV_UNAVAILABLE : PKV_OK;
}

pkv_status vote_supports(pkv_backend_device* device, const pkv_vote_args* args) {
  if (state().faults.refuses_f16 && args->queries.dtype == PKV_DTYPE_F16) return PKV_UNIMPLEMENTED;
  return state().real->vote.supports(device, args);
}

pkv_status fetch_scratch(pkv_backend_device*, const pkv_fetch_args*, int64_t* out) {
  *out = state().faults.fetch_scratch;
  return PKV_OK;
}

pkv_status attend_scratch(pkv_backend_device* device, const pkv_attend_args* args, int64_t* out) {
  const pkv_status status = state().real->attend.scratch_bytes(device, args, out);
  for (int32_t p = 0; p < args->part_count; ++p) {
    *out += args->parts[p].keys.shape[2] * state().faults.attend_scratch;
  }
  return status;
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  const pkv_status status = state().real->device_info(host, ordinal, out);
  out->device_type = state().faults.device_type;
  return status;
}

pkv_status memory_alloc(pkv_backend_device* device, int32_t kind, int64_t bytes, void** out) {
  ++state().faults.allocations;
  if (fails(state().faults.fail_alloc)) return PKV_RESOURCE_EXHAUSTED;
  const pkv_status status = state().real->memory_alloc(device, kind, bytes, out);
  if (status == PKV_OK) std::memset(*out, 0xff, static_cast<std::size_t>(bytes));
  return status;
}

pkv_status memory_copy(pkv_backend_device*, pkv_backend_stream*, void* target, const void* source,
                       int64_t bytes) {
  if (fails(state().faults.fail_copy)) return PKV_UNAVAILABLE;
  return defer([=] {
    std::memmove(target, source, static_cast<std::size_t>(bytes));
    return PKV_OK;
  });
}

pkv_status memory_fill(pkv_backend_device*, pkv_backend_stream*, void* target, int32_t byte,
                       int64_t bytes) {
  return defer([=] {
    std::memset(target, byte, static_cast<std::size_t>(bytes));
    return PKV_OK;
  });
}

pkv_status stream_sync(pkv_backend_device*, pkv_backend_stream*) {
  State& s = state();
  ++s.faults.waits;
  pkv_status first = PKV_OK;
  while (!s.work.empty()) {
    const auto work = std::move(s.work.front());
    s.work.pop_front();
    const pkv_status status = work();
    if (first == PKV_OK) first = status;
  }
  return fails(s.faults.fail_sync) ? PKV_UNAVAILABLE : first;
}

pkv_status event_wait(pkv_backend_device* device, pkv_backend_stream* stream,
                      pkv_backend_event* event) {
  ++state().faults.event_waits;
  return state().real->event_wait(device, stream, event);
}

template <bool kIsExport>
pkv_status convert(pkv_backend_device* device, pkv_backend_stream* stream,
                   const pkv_geometry* geometry, const pkv_store* store, int64_t row, int64_t begin,
                   int64_t count, const pkv_records* records) {
  int& countdown = kIsExport ? state().faults.fail_export : state().faults.fail_import;
  if (fails(countdown)) return PKV_UNAVAILABLE;
  const auto slot = kIsExport ? state().real->store_export : state().real->store_import;
  return defer([=, g = *geometry, s = *store, r = *records] {
    return slot(device, stream, &g, &s, row, begin, count, &r);
  });
}

}  // namespace

DeferredFaults& deferred_faults() { return state().faults; }

std::shared_ptr<const Device> open_deferred(const DeferredFaults& faults) {
  const auto host = Host::create(Log());
  State& s = state();
  s.work.clear();
  s.faults = faults;
  constexpr uint32_t kAbi = (uint32_t{PKV_BACKEND_ABI_MAJOR} << 16) | PKV_BACKEND_ABI_MINOR;
  s.real = pkv_cpu_ref_query(kAbi, host->table());
  REQUIRE(s.real != nullptr);
  s.table = *s.real;
  s.table.name = "deferred";
  s.table.device_info = device_info;
  s.table.memory_alloc = memory_alloc;
  s.table.memory_copy = memory_copy;
  s.table.memory_fill = memory_fill;
  s.table.stream_sync = stream_sync;
  s.table.event_wait = event_wait;
  s.table.store_import = convert<false>;
  s.table.store_export = convert<true>;
  s.table.fit.run = run_later<&pkv_backend::fit>;
  s.table.encode.run = run_encode;
  s.table.vote.run = run_later<&pkv_backend::vote>;
  s.table.vote.supports = vote_supports;
  s.table.select.run = run_later<&pkv_backend::select>;
  s.table.rerank.run = run_later<&pkv_backend::rerank>;
  s.table.fetch.run = run_later<&pkv_backend::fetch>;
  s.table.fetch.scratch_bytes = fetch_scratch;
  s.table.attend.run = run_later<&pkv_backend::attend>;
  s.table.attend.scratch_bytes = attend_scratch;
  return value_of(Device::open(s.table, host, 0));
}

}  // namespace pkv::test
