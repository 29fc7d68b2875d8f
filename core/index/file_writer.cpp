#include "core/index/file_writer.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {

absl::StatusOr<PkvWriter> PkvWriter::create(const std::string& path, bool may_overwrite,
                                            std::span<const SectionSize> sections) {
  PKV_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, may_overwrite));
  PkvWriter writer(std::move(file));
  int64_t offset = front_bytes(static_cast<int64_t>(sections.size()));
  for (const SectionSize& section : sections) {
    FileSection entry{};
    entry.type = section.type;
    entry.offset = static_cast<uint64_t>(offset);
    entry.bytes = static_cast<uint64_t>(section.bytes);
    writer.parts_.push_back({entry, 0, Checksum()});
    const auto end = checked_add(offset, section.bytes);
    const auto next = end ? checked_round_up(*end, kFileAlignment) : std::nullopt;
    if (!next) return absl::InvalidArgumentError(str_cat(path, ": passes 2^63 bytes"));
    offset = *next;
  }
  writer.file_bytes_ = offset;
  return writer;
}

absl::Status PkvWriter::write(const SectionType& type, const void* data, int64_t bytes) {
  const auto part = std::find_if(parts_.begin(), parts_.end(),
                                 [&type](const Part& p) { return p.entry.type == type; });
  PKV_DCHECK(part != parts_.end());
  PKV_DCHECK(part->written + bytes <= static_cast<int64_t>(part->entry.bytes));
  const int64_t offset = static_cast<int64_t>(part->entry.offset) + part->written;
  PKV_RETURN_IF_ERROR(file_.write(offset, data, bytes));
  part->checksum.add(data, static_cast<std::size_t>(bytes));
  part->written += bytes;
  return absl::OkStatus();
}

absl::Status PkvWriter::commit() {
  std::vector<FileSection> table;
  for (Part& part : parts_) {
    PKV_DCHECK(part.written == static_cast<int64_t>(part.entry.bytes));
    part.entry.checksum = part.checksum.value();
    table.push_back(part.entry);
  }
  const std::size_t table_bytes = table.size() * sizeof(FileSection);
  FileHeader header{};
  header.magic = kFileMagic;
  header.byte_order = kFileByteOrder;
  header.version = kFileVersion;
  header.file_bytes = static_cast<uint64_t>(file_bytes_);
  header.section_count = static_cast<uint32_t>(table.size());
  header.table_checksum = checksum(table.data(), table_bytes);
  header.header_checksum = checksum(&header, offsetof(FileHeader, header_checksum));
  PKV_RETURN_IF_ERROR(file_.write(0, &header, sizeof header));
  PKV_RETURN_IF_ERROR(file_.write(sizeof header, table.data(), static_cast<int64_t>(table_bytes)));
  return file_.commit(file_bytes_);
}

}  // namespace pkv
