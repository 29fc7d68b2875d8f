#include "core/index/file_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/index/index_sizes.h"

namespace pkv {
namespace {

// A product that cannot fit is larger than any section.
int64_t bytes_of(std::initializer_list<int64_t> factors) {
  std::optional<int64_t> product = 1;
  for (const int64_t factor : factors) {
    if (product) product = checked_mul(*product, factor);
  }
  return product.value_or(INT64_MAX);
}

}  // namespace

absl::StatusOr<PkvReader> PkvReader::open(const std::string& path) {
  PKV_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  PkvReader reader(std::move(file));
  PKV_RETURN_IF_ERROR(reader.read_front());
  PKV_RETURN_IF_ERROR(reader.read_geometry());
  PKV_RETURN_IF_ERROR(reader.check_sections());
  PKV_RETURN_IF_ERROR(reader.read_numbers());
  PKV_RETURN_IF_ERROR(reader.check_numbers());
  return reader;
}

absl::Status PkvReader::read_geometry() {
  PKV_RETURN_IF_ERROR(check_size(kGeometrySection, sizeof fields_, true));
  PKV_RETURN_IF_ERROR(read_section(kGeometrySection, &fields_));
  const FileGeometry& f = fields_;
  geometry_ = {sizeof geometry_, f.kv_heads,      f.head_dim, f.value_dim,   f.v_source,
               f.codec,          f.vote,          f.rounds,   f.sketch_bits, f.value_norm,
               f.seed,           f.sketch_stride, 0};
  return check_fields();
}

absl::Status PkvReader::check_fields() const {
  const FileGeometry& f = fields_;
  if (f.subspace != format::kSubspace) {
    return other_format(path(), "subspace", f.subspace, format::kSubspace);
  }
  if (const absl::Status status = check_geometry(geometry_); !status.ok()) {
    return damaged(kGeometrySection, to_std(status.message()));
  }
  struct Field {
    std::string_view name;
    int64_t value, min, max;
  };
  const Field ranges[] = {{"kv_heads", f.kv_heads, 1, kMaxSequences},
                          {"center", f.center, 0, 1},
                          {"balance", f.balance, 0, 1},
                          {"fit_picked", f.fit_picked, 0, 1},
                          {"nonfinite", f.nonfinite, 0, 1},
                          {"sequences", f.sequences, 1, kMaxSequences},
                          {"capacity", f.capacity, 1, format::kMaxTokens}};
  for (const Field& field : ranges) {
    if (field.value >= field.min && field.value <= field.max) continue;
    return damaged(kGeometrySection, str_cat(field.name, "=", field.value,
                                             ", accepted: ", field.min, "..", field.max));
  }
  const uint64_t levels = levels_checksum(f.codec, f.sketch_bits);
  if (f.levels == levels) return absl::OkStatus();
  return absl::FailedPreconditionError(str_cat(
      path(), ": levels of the file=", absl::StrFormat("%016x", f.levels), ", accepted: ",
      absl::StrFormat("%016x", levels), ": it was made with other tables of the quantiser"));
}

// All but the planes, whose sizes follow from the lengths (check_numbers).
absl::Status PkvReader::check_sections() const {
  const FileGeometry& f = fields_;
  const int64_t sketch_dim = f.sketch_bits == 0 ? 0 : f.value_dim;
  const int64_t rows = bytes_of({f.sequences, f.kv_heads});  // at most 2^40
  PKV_RETURN_IF_ERROR(check_size(
      kParamsSection, bytes_of({f.kv_heads, 2 * int64_t{f.head_dim} + sketch_dim, sizeof(float)}),
      true));
  PKV_RETURN_IF_ERROR(
      check_size(kSequencesSection, bytes_of({f.sequences, sizeof(FileSequence)}), true));
  PKV_RETURN_IF_ERROR(check_size(kGoodCountsSection, bytes_of({rows, sizeof(int64_t)}), true));
  PKV_RETURN_IF_ERROR(check_size(kValueSumsSection, bytes_of({rows, f.value_dim, sizeof(double)}),
                                 f.value_dim > 0));
  const auto is_known = [](const SectionType& type) {
    constexpr SectionType kNumbers[] = {kGeometrySection, kParamsSection, kSequencesSection,
                                        kGoodCountsSection, kValueSumsSection};
    return std::find(std::begin(kNumbers), std::end(kNumbers), type) != std::end(kNumbers) ||
           std::find(std::begin(kPlaneSections), std::end(kPlaneSections), type) !=
               std::end(kPlaneSections);
  };
  for (const FileSection& section : table()) {
    if (is_known(section.type) || (section.flags & kSectionOptional) != 0) continue;
    return absl::FailedPreconditionError(
        str_cat(path(), ": section ", type_name(section.type), " at offset ", section.offset,
                " is not known to format version ", kFileVersion, " and is not optional"));
  }
  return absl::OkStatus();
}

// The sizes of these sections are within the file by now, so allocations are too.
absl::Status PkvReader::read_numbers() {
  const FileGeometry& f = fields_;
  const auto heads = static_cast<std::size_t>(f.kv_heads);
  const auto dim = static_cast<std::size_t>(f.head_dim);
  const auto sketch_dim = static_cast<std::size_t>(f.sketch_bits == 0 ? 0 : f.value_dim);
  const auto rows = static_cast<std::size_t>(f.sequences) * heads;
  std::vector<float> params(heads * (2 * dim + sketch_dim));
  PKV_RETURN_IF_ERROR(read_section(kParamsSection, params.data()));
  const auto balance = params.begin() + static_cast<std::ptrdiff_t>(heads * dim);
  const auto value_center = balance + static_cast<std::ptrdiff_t>(heads * dim);
  center_.assign(params.begin(), balance);
  balance_.assign(balance, value_center);
  value_center_.assign(value_center, params.end());
  sequences_.resize(static_cast<std::size_t>(f.sequences));
  PKV_RETURN_IF_ERROR(read_section(kSequencesSection, sequences_.data()));
  good_counts_.resize(rows);
  PKV_RETURN_IF_ERROR(read_section(kGoodCountsSection, good_counts_.data()));
  value_sums_.resize(rows * static_cast<std::size_t>(f.value_dim));
  return read_section(kValueSumsSection, value_sums_.data());
}

absl::Status PkvReader::check_numbers() const {
  const FileGeometry& f = fields_;
  if (const absl::Status status = params().status(); !status.ok()) {
    return damaged(kParamsSection, to_std(status.message()));
  }
  std::vector<int64_t> lengths;  // their sum is at most 2^51
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const FileSequence& sequence = sequences_[s];
    if (sequence.length < 0 || sequence.length > f.capacity) {
      return damaged(kSequencesSection, str_cat("length of sequence ", s, "=", sequence.length,
                                                ", accepted: 0..", f.capacity));
    }
    if ((sequence.flags & ~uint32_t{kSequenceLacksValues}) != 0 || sequence.reserved != 0) {
      return damaged(kSequencesSection,
                     str_cat("flags of sequence ", s, "=", sequence.flags, ", accepted: 0 or 1"));
    }
    lengths.push_back(sequence.length);
  }
  for (std::size_t row = 0; row < good_counts_.size(); ++row) {
    const int64_t length = sequences_[row / static_cast<std::size_t>(f.kv_heads)].length;
    if (good_counts_[row] >= 0 && good_counts_[row] <= length) continue;
    return damaged(kGoodCountsSection, str_cat("row ", row, " has ", good_counts_[row],
                                               " good keys, accepted: 0..", length));
  }
  const auto odd = std::find_if(value_sums_.begin(), value_sums_.end(),
                                [](double sum) { return !std::isfinite(sum); });
  if (odd != value_sums_.end()) {
    return damaged(kValueSumsSection,
                   str_cat("number ", odd - value_sums_.begin(), "=", *odd, ", accepted: finite"));
  }
  const auto planes = plane_bytes(geometry_);
  for (std::size_t p = 0; p < planes.size(); ++p) {
    PKV_RETURN_IF_ERROR(
        check_size(kPlaneSections[p],
                   bytes_of({entry_count(geometry_, static_cast<int>(p), lengths), planes[p]}),
                   planes[p] != 0));
  }
  return absl::OkStatus();
}

CodecOptions PkvReader::options() const {
  return {fields_.center != 0, fields_.balance != 0, fields_.fit_picked != 0,
          fields_.nonfinite != 0};
}

absl::StatusOr<CodecParams> PkvReader::params() const {
  return CodecParams::create(geometry_, center_, balance_, value_center_);
}

SectionStream PkvReader::plane(int plane) const {
  return stream(kPlaneSections[static_cast<std::size_t>(plane)]);
}

}  // namespace pkv
