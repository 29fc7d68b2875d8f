#include "tests/fuzz/pkv_bytes.h"

#include <algorithm>

#include "core/index/file_checksum.h"
#include "core/index/file_format.h"

namespace pkv::fuzz {

std::vector<uint8_t> mended(Input input) {
  std::vector<uint8_t> bytes(input.begin(), input.end());
  FileHeader header{};
  if (bytes.size() < sizeof header) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t room = (bytes.size() - sizeof header) / sizeof(FileSection);
  const std::size_t sections = std::min<std::size_t>({header.section_count, room, kMaxSections});
  uint8_t* table = bytes.data() + sizeof header;
  for (std::size_t i = 0; i < sections; ++i) {
    FileSection section{};
    std::memcpy(&section, table + i * sizeof section, sizeof section);
    if (section.offset > bytes.size() || section.bytes > bytes.size() - section.offset) continue;
    section.checksum =
        checksum(bytes.data() + section.offset, static_cast<std::size_t>(section.bytes));
    std::memcpy(table + i * sizeof section, &section, sizeof section);
  }
  header.table_checksum = checksum(table, sections * sizeof(FileSection));
  header.header_checksum = checksum(&header, offsetof(FileHeader, header_checksum));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace pkv::fuzz
