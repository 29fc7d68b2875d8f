#include "core/index/record_planes.h"

#include <cstddef>
#include <optional>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"

namespace pkv {

std::array<int64_t, kPlanes> plane_bytes(const pkv_geometry& geometry) {
  const format::RecordSizes s = format::record_sizes(geometry);
  return {s.signs,       s.vote_factors, s.codes,         s.factors,
          s.value_signs, s.value_codes,  s.value_factors, s.value_norms};
}

std::array<uint8_t*, kPlanes> planes_of(const pkv_records& r) {
  const auto bytes = [](uint16_t* numbers) { return reinterpret_cast<uint8_t*>(numbers); };
  return {r.signs,
          bytes(r.vote_factors),
          r.codes,
          bytes(r.factors),
          r.value_signs,
          r.value_codes,
          bytes(r.value_factors),
          bytes(r.value_norms)};
}

pkv_records records_of(const std::array<uint8_t*, kPlanes>& planes, int64_t row_tokens) {
  const auto numbers = [](uint8_t* bytes) { return reinterpret_cast<uint16_t*>(bytes); };
  pkv_records records{};
  records.struct_size = sizeof records;
  records.row_tokens = row_tokens;
  records.signs = planes[0];
  records.vote_factors = numbers(planes[1]);
  records.codes = planes[2];
  records.factors = numbers(planes[3]);
  records.value_signs = planes[4];
  records.value_codes = planes[5];
  records.value_factors = numbers(planes[6]);
  records.value_norms = numbers(planes[7]);
  return records;
}

std::array<int64_t, kPlanes> range_bytes(const pkv_geometry& geometry, int64_t begin,
                                         int64_t count) {
  auto bytes = plane_bytes(geometry);
  for (int p = 0; p < kPlanes; ++p) {
    bytes[static_cast<std::size_t>(p)] *= format::plane_entries(geometry, p, begin + count) -
                                          format::plane_entries(geometry, p, begin);
  }
  return bytes;
}

int64_t entry_count(const pkv_geometry& geometry, int plane, std::span<const int64_t> lengths) {
  int64_t entries = 0;
  for (const int64_t length : lengths) {
    entries += geometry.kv_heads * format::plane_entries(geometry, plane, length);
  }
  return entries;
}

pkv_records planes_at(const pkv_geometry& geometry, const pkv_records& records, int64_t first,
                      int64_t begin) {
  const auto bytes = plane_bytes(geometry);
  const auto passed = range_bytes(geometry, first, begin - first);
  auto planes = planes_of(records);
  for (std::size_t p = 0; p < planes.size(); ++p) {
    planes[p] = bytes[p] == 0 || planes[p] == nullptr ? nullptr : planes[p] + passed[p];
  }
  return records_of(planes, records.row_tokens);
}

absl::Status check_planes(const pkv_geometry& geometry, const pkv_records& records, int64_t count) {
  const auto bytes = plane_bytes(geometry);
  const auto planes = planes_of(records);
  for (std::size_t p = 0; p < planes.size(); ++p) {
    PKV_RETURN_IF_ERROR(check_pointer(kPlaneNames[p], planes[p], bytes[p] == 0 ? 0 : count));
  }
  return absl::OkStatus();
}

absl::StatusOr<StagedRecords> StagedRecords::create(std::shared_ptr<const Device> device,
                                                    const pkv_geometry& geometry, int64_t tokens) {
  StagedRecords staged(device, geometry);
  const auto bytes = plane_bytes(geometry);
  std::array<int64_t, kPlanes> offsets{};
  int64_t total = 0;
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    offsets[p] = total;
    const auto plane = checked_mul(tokens, bytes[p]);
    const auto end = plane ? checked_add(total, *plane) : std::nullopt;
    const auto padded = end ? checked_round_up(*end, kAlignment) : std::nullopt;
    if (!padded) return absl::InvalidArgumentError(str_cat("too many records: ", tokens));
    total = *padded;
  }
  PKV_ASSIGN_OR_RETURN(staged.buffer_, Buffer::create(std::move(device), PKV_MEMORY_DEVICE, total));
  std::array<uint8_t*, kPlanes> planes{};
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    if (bytes[p] != 0) planes[p] = staged.buffer_.as<uint8_t>() + offsets[p];
  }
  staged.records_ = records_of(planes, tokens);
  return staged;
}

absl::Status StagedRecords::export_row(const Stream& stream, const pkv_store& store, int64_t row,
                                       int64_t begin, int64_t count) const {
  return device_->call("store_export", device_->backend().store_export, stream.handle(), &geometry_,
                       &store, row, begin, count, &records_);
}

absl::Status StagedRecords::import_row(const Stream& stream, const pkv_store& store, int64_t row,
                                       int64_t begin, int64_t count) const {
  return device_->call("store_import", device_->backend().store_import, stream.handle(), &geometry_,
                       &store, row, begin, count, &records_);
}

absl::Status StagedRecords::copy_out(const Stream& stream, const pkv_records& target, int64_t begin,
                                     int64_t count) const {
  const auto bytes = range_bytes(geometry_, begin, count);
  const auto to = planes_of(target);
  const auto from = planes_of(records_);
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    if (bytes[p] != 0) PKV_RETURN_IF_ERROR(stream.copy(to[p], from[p], bytes[p]));
  }
  return absl::OkStatus();
}

absl::Status StagedRecords::copy_in(const Stream& stream, const pkv_records& source, int64_t begin,
                                    int64_t count) const {
  const auto bytes = range_bytes(geometry_, begin, count);
  const auto to = planes_of(records_);
  const auto from = planes_of(source);
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    if (bytes[p] != 0) PKV_RETURN_IF_ERROR(stream.copy(to[p], from[p], bytes[p]));
  }
  return absl::OkStatus();
}

}  // namespace pkv
