// A regular file that is read by offset. Every read is checked against the size the file had when
// it was opened, so a header cannot send a reader beyond it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pkv::cli {

class InputFile {
 public:
  static absl::StatusOr<InputFile> open(const std::string& path);
  // Takes over a descriptor; `path` is what texts call it.
  static absl::StatusOr<InputFile> adopt(int descriptor, const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // All of [offset, offset + bytes), or an error that names the bytes found and needed.
  absl::Status read(int64_t offset, int64_t bytes, void* out) const;

 private:
  InputFile(int descriptor, std::string path, int64_t size)
      : descriptor_(descriptor), path_(std::move(path)), size_(size) {}

  int descriptor_;
  std::string path_;
  int64_t size_;
};

}  // namespace pkv::cli
