// Exported functions of pariskv_stages.h.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/codec/fit.h"
#include "core/codec/geometry.h"
#include "core/codec/params.h"
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "core/index/record_planes.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/stages.h"
#include "core/runtime/row_bytes.h"
#include "pariskv/pariskv_stages.h"

namespace {

template <class Args>
pkv_status run_stage(const char* function, pkv_device* device, pkv_stream* stream, const Args* args,
                     absl::Status (*stage)(const pkv::Stream&, Args)) {
  return pkv::guard(function, [&]() -> absl::Status {
    PKV_REQUIRE(device);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(args);
    PKV_RETURN_IF_ERROR(stream->stream.check_device(device->device, "given"));
    PKV_ASSIGN_OR_RETURN(const Args given, pkv::read_struct(args, Args{}, "args"));
    return stage(stream->stream, given);
  });
}

// What import and export share: everything but the direction.
absl::Status check_conversion(const pkv_device* device, const pkv_stream* stream,
                              const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                              int64_t begin, int64_t count) {
  PKV_REQUIRE(device);
  PKV_REQUIRE(stream);
  PKV_REQUIRE(geometry);
  PKV_REQUIRE(store);
  PKV_RETURN_IF_ERROR(stream->stream.check_device(device->device, "given"));
  PKV_RETURN_IF_ERROR(pkv::check_geometry(*geometry));
  PKV_RETURN_IF_ERROR(pkv::check_store(*device->device, *geometry, *store));
  PKV_RETURN_IF_ERROR(pkv::check_index("row", row, 0, INT64_MAX - 1));
  const bool is_paged = store->pages != nullptr;
  const int64_t capacity = is_paged ? pkv::format::kMaxTokens : store->capacity;
  PKV_RETURN_IF_ERROR(pkv::check_index("begin", begin, 0, capacity));
  PKV_RETURN_IF_ERROR(pkv::check_index("count", count, 0, capacity - begin));
  if (!is_paged) return pkv::check_store_rows(*store, row + 1);
  PKV_RETURN_IF_ERROR(pkv::check_index("row", row, 0, int64_t{geometry->kv_heads} * INT32_MAX - 1));
  const auto sequence = static_cast<int32_t>(row / geometry->kv_heads);
  const int64_t end = begin + count;
  return pkv::check_store_spans(stream->stream, *geometry, *store,
                                {{&sequence, 1}, {&begin, 1}, {&end, 1}});
}

}  // namespace

pkv_status pkv_record_sizes_get(const pkv_geometry* geometry, pkv_record_sizes* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(geometry);
    PKV_RETURN_IF_ERROR(pkv::check_geometry(*geometry));
    const pkv::format::RecordSizes s = pkv::format::record_sizes(*geometry);
    pkv_record_sizes sizes{};
    sizes.signs = s.signs;
    sizes.vote_factors = s.vote_factors;
    sizes.codes = s.codes;
    sizes.factors = s.factors;
    sizes.value_signs = s.value_signs;
    sizes.value_codes = s.value_codes;
    sizes.value_factors = s.value_factors;
    sizes.value_norms = s.value_norms;
    sizes.total = s.total;
    sizes.sketch = s.sketch;
    sizes.sketch_stride = geometry->sketch_stride;
    return pkv::write_struct(out, sizes, "pkv_record_sizes");
  });
}

pkv_status pkv_sign_vector(uint64_t seed, int32_t stream, int32_t count, float* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_RETURN_IF_ERROR(pkv::check_range("stream", stream, 1, 4));
    PKV_RETURN_IF_ERROR(pkv::check_range("count", count, 0, INT32_MAX));
    PKV_RETURN_IF_ERROR(pkv::check_pointer("out", out, count));
    pkv::fill_signs(seed, static_cast<uint32_t>(stream), {out, static_cast<std::size_t>(count)});
    return absl::OkStatus();
  });
}

pkv_status pkv_candidate_count(const pkv_candidate_rule* rule, int64_t n, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(rule);
    PKV_RETURN_IF_ERROR(pkv::check_candidate_rule(*rule));
    PKV_RETURN_IF_ERROR(pkv::check_range("n", n, 0, pkv::format::kMaxTokens));
    *out = pkv::format::candidate_count(*rule, n);
    return absl::OkStatus();
  });
}

pkv_status pkv_fit_params(const pkv_fit_args* sums, int32_t center_on, int32_t balance_on,
                          float* center, float* balance, float* inv_balance, float* value_center) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(sums);
    PKV_REQUIRE(center);
    PKV_REQUIRE(balance);
    PKV_REQUIRE(inv_balance);
    PKV_RETURN_IF_ERROR(pkv::check_range("center_on", center_on, 0, 1));
    PKV_RETURN_IF_ERROR(pkv::check_range("balance_on", balance_on, 0, 1));
    PKV_ASSIGN_OR_RETURN(const pkv_fit_args given,
                         pkv::read_struct(sums, pkv_fit_args{}, "pkv_fit_args"));
    PKV_ASSIGN_OR_RETURN(const pkv::FittedParams fitted,
                         pkv::fit_params(given, center_on != 0, balance_on != 0));
    std::copy(fitted.center.begin(), fitted.center.end(), center);
    std::copy(fitted.balance.begin(), fitted.balance.end(), balance);
    std::copy(fitted.inv_balance.begin(), fitted.inv_balance.end(), inv_balance);
    if (value_center != nullptr) {
      std::copy(fitted.value_center.begin(), fitted.value_center.end(), value_center);
    }
    return absl::OkStatus();
  });
}

pkv_status pkv_stage_fit_sync(pkv_device* device, pkv_stream* stream, const pkv_fit_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_fit_sync);
}

pkv_status pkv_stage_encode_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_encode_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_encode_sync);
}

pkv_status pkv_stage_vote_sync(pkv_device* device, pkv_stream* stream, const pkv_vote_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_vote_sync);
}

pkv_status pkv_stage_select_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_select_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_select_sync);
}

pkv_status pkv_stage_rerank_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_rerank_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_rerank_sync);
}

pkv_status pkv_stage_fetch_sync(pkv_device* device, pkv_stream* stream,
                                const pkv_fetch_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_fetch_sync);
}

pkv_status pkv_stage_attend_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_attend_args* args) {
  return run_stage(__func__, device, stream, args, pkv::stage_attend_sync);
}

pkv_status pkv_store_row_bytes(pkv_device* device, const pkv_geometry* geometry, int64_t capacity,
                               int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(device);
    PKV_REQUIRE(geometry);
    PKV_RETURN_IF_ERROR(pkv::check_geometry(*geometry));
    PKV_RETURN_IF_ERROR(pkv::check_range("capacity", capacity, 0, pkv::format::kMaxTokens));
    PKV_ASSIGN_OR_RETURN(*out, pkv::store_row_bytes(*device->device, *geometry, capacity));
    return absl::OkStatus();
  });
}

pkv_status pkv_store_import_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                                 int64_t begin, int64_t count, const pkv_records* source) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_RETURN_IF_ERROR(check_conversion(device, stream, geometry, store, row, begin, count));
    PKV_REQUIRE(source);
    PKV_ASSIGN_OR_RETURN(const pkv_records records,
                         pkv::read_struct(source, pkv_records{}, "pkv_records"));
    PKV_RETURN_IF_ERROR(pkv::check_planes(*geometry, records, count));
    if (count == 0) return absl::OkStatus();
    const pkv::Device& opened = *device->device;
    PKV_RETURN_IF_ERROR(opened.call("store_import", opened.backend().store_import,
                                    stream->stream.handle(), geometry, store, row, begin, count,
                                    &records));
    return stream->stream.sync();
  });
}

pkv_status pkv_store_export_sync(pkv_device* device, pkv_stream* stream,
                                 const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                                 int64_t begin, int64_t count, const pkv_records* target) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_RETURN_IF_ERROR(check_conversion(device, stream, geometry, store, row, begin, count));
    PKV_REQUIRE(target);
    PKV_ASSIGN_OR_RETURN(const pkv_records records,
                         pkv::read_struct(target, pkv_records{}, "pkv_records"));
    PKV_RETURN_IF_ERROR(pkv::check_planes(*geometry, records, count));
    if (count == 0) return absl::OkStatus();
    const pkv::Device& opened = *device->device;
    PKV_RETURN_IF_ERROR(opened.call("store_export", opened.backend().store_export,
                                    stream->stream.handle(), geometry, store, row, begin, count,
                                    &records));
    return stream->stream.sync();
  });
}
