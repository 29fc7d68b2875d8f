// Sections of a .pkv file, whatever they hold: the front is checked when it is opened, sections as
// they are read. docs/format.md, section 2. Refusals: DATA_LOSS (damaged), FAILED_PRECONDITION
// (another version), those of file_system.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/index/file_checksum.h"
#include "core/index/file_format.h"
#include "core/index/file_system.h"

namespace pkv {

std::string type_name(const SectionType& type);  // quoted
// FAILED_PRECONDITION: a field that says how the file is built holds another number.
absl::Status other_format(std::string_view path, std::string_view field, int64_t found,
                          int64_t wanted);

// One section read from front to back.
class SectionStream {
 public:
  SectionStream(const InputFile& file, const FileSection& section)
      : file_(&file), section_(section) {}
  absl::Status read(void* target, int64_t bytes);
  // All has been read: DATA_LOSS if the checksum differs.
  absl::Status finish() const;

 private:
  const InputFile* file_;
  FileSection section_;
  int64_t done_ = 0;
  Checksum checksum_;
};

class PkvFile {
 public:
  explicit PkvFile(InputFile file) : file_(std::move(file)) {}

  const std::string& path() const { return file_.path(); }
  // Header and table.
  absl::Status read_front();
  const std::vector<FileSection>& table() const { return table_; }

  const FileSection* find(const SectionType& type) const;
  // DATA_LOSS: it is missing, or there though not wanted, or of another size.
  absl::Status check_size(const SectionType& type, int64_t bytes, bool is_wanted) const;
  // The whole of a section of known size, its checksum compared.
  absl::Status read_section(const SectionType& type, void* target) const;
  // Of a section that is there. The file stays where it is meanwhile.
  SectionStream stream(const SectionType& type) const { return {file_, *find(type)}; }
  // Sections that nobody asks for: their checksums all the same.
  absl::Status check_unknown() const;

  absl::Status damaged(std::string_view what) const;
  absl::Status damaged(const SectionType& type, std::string_view what) const;

 private:
  absl::Status check_table(const FileHeader& header);
  absl::Status check_zeros(int64_t begin, int64_t end) const;

  InputFile file_;
  std::vector<FileSection> table_;
};

}  // namespace pkv
