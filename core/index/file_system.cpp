#include "core/index/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

constexpr int kTemporaryNames = 100;  // tries until one is free
constexpr std::size_t kLargestCall = std::size_t{1} << 30;

// The system's text without strerror, which is not for several threads.
std::string system_text(int error) { return std::generic_category().message(error); }

absl::Status file_error(std::string_view path, std::string_view doing, int error) {
  const std::string text = str_cat(path, ": ", doing, ": ", system_text(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return absl::ResourceExhaustedError(text);
    case EEXIST: return absl::AlreadyExistsError(text);
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
    case ENXIO: return absl::InvalidArgumentError(text);
    default: return absl::UnavailableError(text);
  }
}

absl::Status check_path(const std::string& path) {
  if (!path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("path is empty, accepted: the name of a file");
}

// Names and renames survive a power cut once the folder is flushed. Some file systems do not flush
// folders; there is nothing more to do then.
absl::Status flush_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  std::string folder = ".";
  if (slash != std::string::npos) folder = slash == 0 ? "/" : path.substr(0, slash);
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) == 0 || errno == EINVAL) return absl::OkStatus();
  return file_error(folder, "flushing the folder", errno);
}

int rename_without_replacing(const char* from, const char* to) {
#if defined(__linux__)
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
  // A second name fails where the first exists, as the rename would have to.
  if (::link(from, to) != 0) return errno;
  ::unlink(from);
  return 0;
}

}  // namespace

FileDescriptor::~FileDescriptor() { close(); }

int FileDescriptor::close() {
  const int number = std::exchange(number_, -1);
  return number < 0 || ::close(number) == 0 ? 0 : errno;
}

absl::StatusOr<InputFile> InputFile::open(const std::string& path) {
  PKV_RETURN_IF_ERROR(check_path(path));
  InputFile input;
  input.path_ = path;
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  input.file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (input.file_.get() < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return absl::NotFoundError(str_cat(path, ": ", system_text(error)));
    }
    return file_error(path, "opening", error);
  }
  struct stat info {};
  if (::fstat(input.file_.get(), &info) != 0) return file_error(path, "looking at", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(str_cat(path, ": not a regular file"));
  }
  input.bytes_ = info.st_size;
  return input;
}

absl::Status InputFile::read(int64_t offset, void* target, int64_t bytes) const {
  auto* to = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const std::size_t wanted = std::min(static_cast<std::size_t>(bytes), kLargestCall);
    const ssize_t got = ::pread(file_.get(), to, wanted, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path_, "reading", errno);
    if (got == 0) {
      return absl::DataLossError(
          str_cat(path_, ": ends at offset ", offset, ", ", bytes, " bytes are missing there"));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<OutputFile> OutputFile::create(const std::string& path, bool may_overwrite) {
  PKV_RETURN_IF_ERROR(check_path(path));
  struct stat info {};
  if (!may_overwrite && ::lstat(path.c_str(), &info) == 0) {
    return file_error(path, "saving without leave to overwrite", EEXIST);
  }
  OutputFile output(path, may_overwrite);
  for (int i = 0; i < kTemporaryNames; ++i) {
    std::string temporary = str_cat(path, ".tmp-", ::getpid(), "-", i);
    output.file_ =
        FileDescriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (output.file_.get() >= 0) {
      output.temporary_ = std::move(temporary);  // a copy could fail, and leave the file
      return output;
    }
    if (errno != EEXIST) return file_error(temporary, "creating", errno);
  }
  return absl::UnavailableError(
      str_cat(path, ": ", kTemporaryNames, " temporary files of this process are in the way"));
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status OutputFile::write(int64_t offset, const void* data, int64_t bytes) const {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t wanted = std::min(static_cast<std::size_t>(bytes), kLargestCall);
    const ssize_t put = ::pwrite(file_.get(), from, wanted, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return file_error(path_, "writing", errno);
    from += put;
    offset += put;
    bytes -= put;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::rename() {
  int error = 0;
  if (!may_overwrite_) {
    error = rename_without_replacing(temporary_.c_str(), path_.c_str());
  } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) return file_error(path_, "renaming the temporary file", error);
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status OutputFile::commit(int64_t bytes) {
  if (::ftruncate(file_.get(), bytes) != 0) return file_error(path_, "writing", errno);
  if (::fsync(file_.get()) != 0) return file_error(path_, "flushing", errno);
  if (const int error = file_.close(); error != 0) return file_error(path_, "closing", error);
  PKV_RETURN_IF_ERROR(rename());
  return flush_folder(path_);
}

}  // namespace pkv
