#include "tools/reader_npz.h"

#include <fcntl.h>
#include <unistd.h>
#include <zip.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tools/input_file.h"
#include "tools/interrupt.h"
#include "tools/reader_npy.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr int64_t kInflatedBytes = 1 << 20;
// Deflate cannot do better than 258 bytes for 2 bits.
constexpr uint64_t kMaxRatio = 1032;
constexpr uint64_t kRatioSlack = 1024;

struct CloseArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct CloseMember {
  void operator()(zip_file_t* member) const { zip_fclose(member); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;
using Member = std::unique_ptr<zip_file_t, CloseMember>;

absl::StatusOr<Archive> open_archive(const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));  // refuses what is no file
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    absl::Status status = input_error("{}: not a sound .npz file, truncated or damaged: {}", path,
                                      zip_error_strerror(&error));
    zip_error_fini(&error);
    return status;
  }
  return archive;
}

std::string list_members(zip_t* archive) {
  std::string list;
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count && list.size() < 200; ++i) {
    const char* name = zip_get_name(archive, static_cast<zip_uint64_t>(i), 0);
    std::string text = name == nullptr ? "" : name;
    if (text.size() > 4 && text.substr(text.size() - 4) == ".npy") text.resize(text.size() - 4);
    list += (list.empty() ? "" : ", ") + text;
  }
  return list.empty() ? "none" : list;
}

absl::StatusOr<zip_stat_t> find_member(zip_t* archive, const std::string& path,
                                       const std::string& tensor) {
  zip_stat_t about;
  zip_stat_init(&about);
  if (zip_stat(archive, (tensor + ".npy").c_str(), 0, &about) != 0) {
    return input_error("{}: no tensor \"{}\"; there are: {}", path, tensor, list_members(archive));
  }
  constexpr zip_uint64_t kNeeded = ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                   ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((about.valid & kNeeded) != kNeeded || about.encryption_method != ZIP_EM_NONE ||
      (about.comp_method != ZIP_CM_STORE && about.comp_method != ZIP_CM_DEFLATE)) {
    return input_error(
        "{}: tensor {}: compression method {}, encryption {}: accepted are stored and "
        "deflated members without encryption",
        path, tensor, about.comp_method, about.encryption_method);
  }
  if (about.size > uint64_t{INT64_MAX} || about.size / kMaxRatio > about.comp_size + kRatioSlack) {
    return input_error("{}: tensor {}: {} bytes cannot come from {} compressed ones: damaged", path,
                       tensor, about.size, about.comp_size);
  }
  return about;
}

// A file without a name that vanishes when it is closed.
absl::StatusOr<int> open_nameless() {
  const char* folder = secure_getenv("TMPDIR");
  std::string name =
      std::string(folder != nullptr && *folder != '\0' ? folder : "/var/tmp") + "/pariskv-XXXXXX";
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) {
    return system_error(
        "{}: cannot be created: {} (the environment variable TMPDIR names the folder)", name,
        system_text(errno));
  }
  ::unlink(name.c_str());
  return descriptor;
}

absl::Status write_all(int descriptor, const char* data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, data, static_cast<size_t>(bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return system_error(
          "temporary file for unpacking: cannot be written: {} (the environment "
          "variable TMPDIR names the folder)",
          system_text(errno));
    }
    data += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

// All bytes of the member; libzip checks its CRC at the end.
absl::Status unpack(zip_t* archive, const zip_stat_t& about, const std::string& source,
                    int descriptor) {
  const Member member(zip_fopen_index(archive, about.index, 0));
  if (member == nullptr) {
    return input_error("{}: cannot be unpacked: {}", source, zip_strerror(archive));
  }
  std::vector<char> buffer(kInflatedBytes);
  uint64_t unpacked = 0;
  for (;;) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const zip_int64_t got = zip_fread(member.get(), buffer.data(), buffer.size());
    if (got < 0) {
      return input_error("{}: truncated or damaged: {}", source, zip_file_strerror(member.get()));
    }
    if (got == 0) break;
    unpacked += static_cast<uint64_t>(got);
    if (unpacked > about.size) break;
    CLI_RETURN_IF_ERROR(write_all(descriptor, buffer.data(), got));
  }
  if (unpacked != about.size) {
    return input_error("{}: damaged: the archive promises {} bytes, {} were unpacked", source,
                       about.size, unpacked);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorReader>> open_npz(const std::string& path,
                                                       const std::string& tensor) {
  const std::string source = fmt::format("{}: tensor {}", path, tensor);
  CLI_ASSIGN_OR_RETURN(const Archive archive, open_archive(path));
  CLI_ASSIGN_OR_RETURN(const zip_stat_t about, find_member(archive.get(), path, tensor));
  CLI_ASSIGN_OR_RETURN(const int descriptor, open_nameless());
  // The size is taken after unpacking; until then this only closes the descriptor on the way out.
  CLI_ASSIGN_OR_RETURN(const InputFile closer, InputFile::adopt(descriptor, source));
  CLI_RETURN_IF_ERROR(unpack(archive.get(), about, source, descriptor));
  CLI_ASSIGN_OR_RETURN(InputFile unpacked, InputFile::adopt(::dup(descriptor), source));
  return open_npy(std::move(unpacked), source);
}

}  // namespace pkv::cli
