#include "tools/pkv_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tools/input_file.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

// Offsets as in docs/format.md, sections 2.1, 2.2, 2.4.
constexpr int64_t kHeaderBytes = 64;
constexpr int64_t kEntryBytes = 32;
constexpr uint32_t kMaxSections = 64;
constexpr int64_t kGeometryBytes = 88;

template <class T>
T number_at(const char* bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

absl::Status take_geometry(const InputFile& input, PkvFile& file) {
  const auto section = std::find_if(file.sections.begin(), file.sections.end(),
                                    [](const PkvSection& s) { return s.type == "GEOM"; });
  if (section == file.sections.end() || section->bytes != kGeometryBytes ||
      section->offset > static_cast<uint64_t>(input.size())) {
    return input_error("{}: section GEOM: accepted is one of {} bytes", input.path(),
                       kGeometryBytes);
  }
  std::array<char, kGeometryBytes> bytes;
  CLI_RETURN_IF_ERROR(
      input.read(static_cast<int64_t>(section->offset), kGeometryBytes, bytes.data()));
  file.center = number_at<int32_t>(bytes.data(), 40) != 0;
  file.balance = number_at<int32_t>(bytes.data(), 44) != 0;
  file.isolates = number_at<int32_t>(bytes.data(), 48) != 0;
  file.sequences = number_at<int32_t>(bytes.data(), 52);
  file.capacity = number_at<int64_t>(bytes.data(), 64);
  file.fits_picked = number_at<int32_t>(bytes.data(), 84) != 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PkvFile> read_pkv_file(const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const InputFile input, InputFile::open(path));
  std::array<char, kHeaderBytes> header;
  CLI_RETURN_IF_ERROR(input.read(0, kHeaderBytes, header.data()));
  PkvFile file;
  file.version = number_at<uint32_t>(header.data(), 12);
  file.bytes = number_at<uint64_t>(header.data(), 16);
  const auto count = number_at<uint32_t>(header.data(), 24);
  if (count < 1 || count > kMaxSections) {
    return input_error("{}: {} sections: accepted are 1..{}", path, count, kMaxSections);
  }
  for (uint32_t i = 0; i < count; ++i) {
    std::array<char, kEntryBytes> entry;
    CLI_RETURN_IF_ERROR(
        input.read(kHeaderBytes + int64_t{i} * kEntryBytes, kEntryBytes, entry.data()));
    file.sections.push_back(
        {std::string(entry.data(), 4), (number_at<uint32_t>(entry.data(), 4) & 1) != 0,
         number_at<uint64_t>(entry.data(), 8), number_at<uint64_t>(entry.data(), 16),
         number_at<uint64_t>(entry.data(), 24)});
  }
  CLI_RETURN_IF_ERROR(take_geometry(input, file));
  return file;
}

}  // namespace pkv::cli
