#include "core/index/file_sections.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

constexpr int64_t kReadBytes = 1 << 16;

}  // namespace

std::string type_name(const SectionType& type) { return quote({type.data(), type.size()}); }

absl::Status other_format(std::string_view path, std::string_view field, int64_t found,
                          int64_t wanted) {
  return absl::FailedPreconditionError(
      str_cat(path, ": ", field, " of the file=", found, ", accepted: ", wanted));
}

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

absl::Status PkvFile::damaged(std::string_view what) const {
  return absl::DataLossError(str_cat(path(), ": damaged: ", what));
}

absl::Status PkvFile::damaged(const SectionType& type, std::string_view what) const {
  const FileSection* section = find(type);
  if (section == nullptr) return damaged(str_cat("section ", type_name(type), ": ", what));
  return damaged(str_cat("section ", type_name(type), " at offset ", section->offset, ": ", what));
}

const FileSection* PkvFile::find(const SectionType& type) const {
  const auto at = std::find_if(table_.begin(), table_.end(),
                               [&type](const FileSection& s) { return s.type == type; });
  return at == table_.end() ? nullptr : &*at;
}

absl::Status PkvFile::read_front() {
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
    return other_format(path(), "byte order mark", header.byte_order, kFileByteOrder);
  }
  if (header.version != kFileVersion) {
    return other_format(path(), "format version", header.version, kFileVersion);
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
absl::Status PkvFile::check_table(const FileHeader& header) {
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

absl::Status PkvFile::check_zeros(int64_t begin, int64_t end) const {
  std::array<uint8_t, kFileAlignment> bytes{};
  PKV_RETURN_IF_ERROR(file_.read(begin, bytes.data(), end - begin));
  for (int64_t i = 0; i < end - begin; ++i) {
    if (bytes[static_cast<std::size_t>(i)] == 0) continue;
    return damaged(str_cat("offset ", begin + i, ": ", bytes[static_cast<std::size_t>(i)],
                           " between sections, accepted: 0"));
  }
  return absl::OkStatus();
}

absl::Status PkvFile::check_size(const SectionType& type, int64_t bytes, bool is_wanted) const {
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

absl::Status PkvFile::read_section(const SectionType& type, void* target) const {
  const FileSection* section = find(type);
  if (section == nullptr) return absl::OkStatus();
  SectionStream stream(file_, *section);
  PKV_RETURN_IF_ERROR(stream.read(target, static_cast<int64_t>(section->bytes)));
  return stream.finish();
}

absl::Status PkvFile::check_unknown() const {
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
