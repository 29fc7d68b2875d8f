// Files as the index reads and writes them: whole, checked, and never left half written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pkv {

// Closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  // OK, or the errno of close.
  int close();

 private:
  int number_ = -1;
};

class InputFile {
 public:
  // NOT_FOUND: no such file; INVALID_ARGUMENT: not a regular file, or not readable.
  static absl::StatusOr<InputFile> open(const std::string& path);
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // DATA_LOSS: the file ends before.
  absl::Status read(int64_t offset, void* target, int64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor file_;
  int64_t bytes_ = 0;
};

// Written under a temporary name in the same folder; commit gives it its own. Without commit, or
// when that fails, nothing is left behind.
class OutputFile {
 public:
  // ALREADY_EXISTS: `path` is there and may not be overwritten.
  static absl::StatusOr<OutputFile> create(const std::string& path, bool may_overwrite);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        may_overwrite_(other.may_overwrite_),
        file_(std::move(other.file_)) {}
  OutputFile& operator=(OutputFile&&) = delete;

  absl::Status write(int64_t offset, const void* data, int64_t bytes) const;
  // The length becomes `bytes`, what was not written is 0; then flushes, renames, flushes the
  // folder. ALREADY_EXISTS: somebody else made the file meanwhile.
  absl::Status commit(int64_t bytes);

 private:
  OutputFile(const std::string& path, bool may_overwrite)
      : path_(path), may_overwrite_(may_overwrite) {}
  absl::Status rename();

  std::string path_;
  std::string temporary_;  // "" once it is gone
  bool may_overwrite_;
  FileDescriptor file_;
};

}  // namespace pkv
