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

constexpr int64_t kReadBytes = 1 << 16;

std::string type_name(const SectionType& type) { return quote({type.data(), type.size()}); }

// A product that cannot fit is larger than any section.
int64_t bytes_of(std::initializer_list<int64_t> factors) {
  std::optional<int64_t> product = 1;
  for (const int64_t factor : factors) {
    if (product) product = checked_mul(*product, factor);
  }
  return product.value_or(INT64_MAX);
}

absl::Status other(std::string_view path, std::string_view field, int64_t found, int64_t wanted) {
  return absl::FailedPreconditionError(
      str_cat(path, ": ", field, " of the file=", found, ", accepted: ", wanted));
}

}  // namespace

absl::Status SectionStream::read(void* target, int64_t bytes) {
  PKV_RETURN_IF_ERROR(file_->read(static_cast<int64_t>(section_.offset) + done_, target, bytes));
  checksum_.add(target, static_cast<std::size_t>(bytes));
  done_ += bytes;
  return absl::OkStatus();
}

absl::Status SectionStream::finish() const {
  if (checksum_.value() == section_.checksum) return absl::OkStatus();
  return absl::DataLossError(str_cat(file_->path(), ": damaged: section ", type_name(section_.type),
                                     " at offset ", section_.offset, ": its checksum differs"));
}

absl::Status PkvReader::damaged(std::string_view what) const {
  return absl::DataLossError(str_cat(path(), ": damaged: ", what));
}

absl::Status PkvReader::damaged(const SectionType& type, std::string_view what) const {
  const FileSection* section = find(type);
  if (section == nullptr) return damaged(str_cat("section ", type_name(type), ": ", what));
  return damaged(str_cat("section ", type_name(type), " at offset ", section->offset, ": ", what));
}

const FileSection* PkvReader::find(const SectionType& type) const {
  const auto at = std::find_if(table_.begin(), table_.end(),
                               [&type](const FileSection& s) { return s.type == type; });
  return at == table_.end() ? nullptr : &*at;
}

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

absl::Status PkvReader::read_front() {
  FileHeader header{};
  if (file_.bytes() < int64_t{sizeof header}) {
    return damaged(str_cat("header at offset 0: the file has ", file_.bytes(), " bytes, a header ",
                           sizeof header));
  }
  PKV_RETURN_IF_ERROR(file_.read(0, &header, sizeof header));
  if (header.magic != kFileMagic) {
    return damaged("header at offset 0: the first 8 bytes are not those of a .pkv file");
  }
  if (header.header_checksum != checksum(&header, offsetof(FileHeader, header_checksum))) {
    // Both versions: a file of another version may well have a mark at another place.
    return damaged(str_cat("header at offset 0: its checksum differs (format version ",
                           header.version, ", this library reads ", kFileVersion, ")"));
  }
  if (header.byte_order != kFileByteOrder) {
    return other(path(), "byte order mark", header.byte_order, kFileByteOrder);
  }
  if (header.version != kFileVersion) {
    return other(path(), "format version", header.version, kFileVersion);
  }
  if (header.reserved != 0 || header.reserved_2 != std::array<uint64_t, 2>{}) {
    return damaged("header at offset 0: reserved bytes are not 0");
  }
  if (header.file_bytes != static_cast<uint64_t>(file_.bytes())) {
    return damaged(str_cat("header at offset 16: the file should have ", header.file_bytes,
                           " bytes and has ", file_.bytes()));
  }
  if (header.section_count < 1 || header.section_count > kMaxSections) {
    return damaged(str_cat("header at offset 24: ", header.section_count,
                           " sections, accepted: 1..", kMaxSections));
  }
  return check_table(header);
}

// Sections follow one another, with zeros up to the next multiple of 64, up to the file's end.
absl::Status PkvReader::check_table(const FileHeader& header) {
  const int64_t table_bytes = int64_t{header.section_count} * int64_t{sizeof(FileSection)};
  const int64_t table_end = int64_t{sizeof header} + table_bytes;
  if (front_bytes(header.section_count) > file_.bytes()) {
    return damaged(str_cat("section table at offset ", sizeof header, ": it ends at ",
                           front_bytes(header.section_count), ", the file at ", file_.bytes()));
  }
  table_.resize(header.section_count);
  PKV_RETURN_IF_ERROR(file_.read(sizeof header, table_.data(), table_bytes));
  if (checksum(table_.data(), static_cast<std::size_t>(table_bytes)) != header.table_checksum) {
    return damaged(str_cat("section table at offset ", sizeof header, ": its checksum differs"));
  }
  PKV_RETURN_IF_ERROR(check_zeros(table_end, front_bytes(header.section_count)));
  int64_t offset = front_bytes(header.section_count);
  for (const FileSection& section : table_) {
    if (find(section.type) != &section) return damaged(section.type, "it occurs twice");
    if (section.offset != static_cast<uint64_t>(offset)) {
      return damaged(section.type, str_cat("it should begin at ", offset));
    }
    if ((section.flags & ~uint32_t{kSectionOptional}) != 0) {
      return damaged(section.type, str_cat("flags=", section.flags, ", accepted: 0 or 1"));
    }
    const int64_t room = file_.bytes() - offset;
    if (section.bytes > static_cast<uint64_t>(room)) {
      return damaged(section.type, str_cat("it has ", section.bytes, " bytes, the file ", room,
                                           " from there on"));
    }
    const int64_t end = offset + static_cast<int64_t>(section.bytes);
    const auto next = checked_round_up(end, kFileAlignment);
    if (!next || *next > file_.bytes()) {
      return damaged(section.type,
                     str_cat("the file ends at ", file_.bytes(), ", within the zeros behind it"));
    }
    PKV_RETURN_IF_ERROR(check_zeros(end, *next));
    offset = *next;
  }
  if (offset == file_.bytes()) return absl::OkStatus();
  return damaged(
      str_cat("the last section ends at offset ", offset, ", the file at ", file_.bytes()));
}

absl::Status PkvReader::check_zeros(int64_t begin, int64_t end) const {
  std::array<uint8_t, kFileAlignment> bytes{};
  PKV_RETURN_IF_ERROR(file_.read(begin, bytes.data(), end - begin));
  for (int64_t i = 0; i < end - begin; ++i) {
    if (bytes[static_cast<std::size_t>(i)] == 0) continue;
    return damaged(str_cat("offset ", begin + i, ": ", bytes[static_cast<std::size_t>(i)],
                           " between sections, accepted: 0"));
  }
  return absl::OkStatus();
}

absl::Status PkvReader::check_size(const SectionType& type, int64_t bytes, bool is_wanted) const {
  const FileSection* section = find(type);
  if (section == nullptr) {
    return is_wanted ? damaged(type, "it is missing") : absl::OkStatus();
  }
  if (!is_wanted) return damaged(type, "it does not belong to this geometry");
  if (section->flags != 0) return damaged(type, "flags=1 (optional), accepted: 0");
  if (section->bytes == static_cast<uint64_t>(bytes)) return absl::OkStatus();
  return damaged(type, str_cat("it has ", section->bytes, " bytes, accepted: ",
                               bytes == INT64_MAX ? "more than a file can have" : str_cat(bytes)));
}

absl::Status PkvReader::read_section(const SectionType& type, void* target) const {
  const FileSection* section = find(type);
  if (section == nullptr) return absl::OkStatus();
  SectionStream stream(file_, *section);
  PKV_RETURN_IF_ERROR(stream.read(target, static_cast<int64_t>(section->bytes)));
  return stream.finish();
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
    return other(path(), "subspace", f.subspace, format::kSubspace);
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
  for (const FileSection& section : table_) {
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
  return {file_, *find(kPlaneSections[static_cast<std::size_t>(plane)])};
}

absl::Status PkvReader::check_unknown() const {
  for (const FileSection& section : table_) {
    if ((section.flags & kSectionOptional) == 0) continue;
    SectionStream stream(file_, section);
    std::vector<uint8_t> bytes(static_cast<std::size_t>(kReadBytes));
    for (auto left = static_cast<int64_t>(section.bytes); left > 0;) {
      const int64_t count = std::min(left, kReadBytes);
      PKV_RETURN_IF_ERROR(stream.read(bytes.data(), count));
      left -= count;
    }
    PKV_RETURN_IF_ERROR(stream.finish());
  }
  return absl::OkStatus();
}

}  // namespace pkv
