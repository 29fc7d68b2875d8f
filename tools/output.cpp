#include "tools/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "tools/command_line.h"
#include "tools/interrupt.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

absl::Status exists_error(const std::string& path) {
  return usage_error("{}: exists; --force replaces it", path);
}

bool is_same_file(const struct stat& about, const std::string& path) {
  struct stat other = {};
  return ::stat(path.c_str(), &other) == 0 && other.st_dev == about.st_dev &&
         other.st_ino == about.st_ino;
}

// A file of a name of its own beside the target; removed unless it was moved to the target.
class Draft {
 public:
  explicit Draft(const std::string& target)
      : target_(target), path_(fmt::format("{}.tmp-{}", target, ::getpid())) {}
  ~Draft() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (is_created_) ::unlink(path_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  absl::Status write(std::string_view text) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return error("cannot be created");
    is_created_ = true;
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return error("cannot be written");
      text.remove_prefix(static_cast<size_t>(written));
    }
    if (::fsync(descriptor_) != 0) return error("cannot be flushed");
    if (::close(std::exchange(descriptor_, -1)) != 0) return error("cannot be closed");
    return absl::OkStatus();
  }

  // A link, unlike a rename, fails where a file of that name has appeared meanwhile.
  absl::Status publish(bool may_replace) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    if (may_replace) {
      if (::rename(path_.c_str(), target_.c_str()) != 0) return error("cannot be renamed to");
      is_created_ = false;
      return absl::OkStatus();
    }
    if (::link(path_.c_str(), target_.c_str()) == 0) return absl::OkStatus();
    return errno == EEXIST ? exists_error(target_) : error("cannot be renamed to");
  }

 private:
  absl::Status error(const char* what) const {
    return system_error("{}: {}: {}", target_, what, system_text(errno));
  }

  const std::string& target_;
  std::string path_;
  int descriptor_ = -1;
  bool is_created_ = false;
};

}  // namespace

void offer_output(CommandLine& line, OutputOptions* options) {
  line.text("output,o", &options->path, "write the result to this file instead of stdout");
  line.flag("force", &options->is_forced, "replace the output file if it is there");
}

absl::Status check_output(const OutputOptions& options, const std::vector<std::string>& inputs) {
  const std::string& path = options.path;
  if (path.empty()) {
    if (options.is_forced) return usage_error("--force: accepted only with --output");
    return absl::OkStatus();
  }
  struct stat about = {};
  if (::lstat(path.c_str(), &about) == 0) {
    if (!S_ISREG(about.st_mode) && !S_ISLNK(about.st_mode)) {
      return usage_error("{}: is no regular file, and is not replaced", path);
    }
    if (!options.is_forced) return exists_error(path);
    for (const std::string& input : inputs) {
      if (is_same_file(about, input)) return usage_error("{}: is an input as well", path);
    }
  }
  const std::string folder = folder_of(path);
  if (::stat(folder.c_str(), &about) == 0 && !S_ISDIR(about.st_mode)) {
    return system_error("{}: {} is not a folder", path, folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return system_error("{}: folder {} cannot be written to: {}", path, folder, system_text(errno));
  }
  return absl::OkStatus();
}

absl::Status write_output(const OutputOptions& options, std::string_view text) {
  if (options.path.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return flush_stdout();
  }
  Draft draft(options.path);
  CLI_RETURN_IF_ERROR(draft.write(text));
  return draft.publish(options.is_forced);
}

absl::Status flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return system_error("stdout: cannot be written: {}", system_text(errno == 0 ? EIO : errno));
}

}  // namespace pkv::cli
