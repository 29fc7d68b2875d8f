#include "tools/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tools/status.h"

namespace pkv::cli {

absl::StatusOr<InputFile> InputFile::open(const std::string& path) {
  // Not blocking, so that a pipe without a writer is refused below instead of waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return input_error("{}: cannot be opened: {}", path, system_text(errno));
  return adopt(descriptor, path);
}

absl::StatusOr<InputFile> InputFile::adopt(int descriptor, const std::string& path) {
  InputFile file(descriptor, path, 0);
  struct stat about = {};
  if (::fstat(descriptor, &about) != 0) {
    return input_error("{}: cannot be examined: {}", path, system_text(errno));
  }
  if (!S_ISREG(about.st_mode)) return input_error("{}: not a regular file", path);
  file.size_ = about.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::Status InputFile::read(int64_t offset, int64_t bytes, void* out) const {
  if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset) {
    return input_error("{}: truncated: {} bytes needed at offset {}, the file has {} bytes", path_,
                       bytes, offset, size_);
  }
  auto* target = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, target, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("{}: cannot be read: {}", path_, system_text(errno));
    if (got == 0) {
      return input_error("{}: ends at offset {}, {} more bytes needed: it was cut while being read",
                         path_, offset, bytes);
    }
    target += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

}  // namespace pkv::cli
