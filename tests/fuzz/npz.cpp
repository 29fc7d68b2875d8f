// .npz: a zip archive, stored and deflated members, the .npy inside.
#include <stdlib.h>
#include <zip.h>

#include "tests/fuzz/reader.h"
#include "tools/reader_npz.h"

namespace pkv::fuzz {
namespace {

std::string npz(const std::vector<std::pair<std::string, std::string>>& members, int method) {
  const Folder folder;
  const std::string path = folder.path() + "/seed.npz";
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE, &error);
  require(archive != nullptr, "an archive can be made");
  for (const auto& [name, bytes] : members) {
    zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, 0);
    require(index >= 0, "an archive takes members");
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), method, 9);
    zip_file_set_mtime(archive, static_cast<zip_uint64_t>(index), 0, 0);
  }
  require(zip_close(archive) == 0, "an archive can be written");
  return read_file(path);
}

std::string npy(const std::string& header, std::size_t data) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + std::string(data, '\0');
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string k = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n", 48);
  const std::string large =
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4096, 4), }\n", 65536);
  return {npz({{"k.npy", k}}, ZIP_CM_STORE), npz({{"k.npy", k}}, ZIP_CM_DEFLATE),
          npz({{"v.npy", k}, {"k.npy", k}}, ZIP_CM_STORE), npz({{"k.npy", large}}, ZIP_CM_DEFLATE)};
}

void run(Input input) {
  static MemoryFile file;
  static const Folder folder;  // members are unpacked there
  static const int is_set = setenv("TMPDIR", folder.path().c_str(), 1);
  require(is_set == 0, "the environment can be set");
  file.fill(input);
  // Deflate gives at most 1032 bytes for one.
  check_tensor(cli::open_npz(file.path(), "k"), input.size() + 1024, 1032);
}

}  // namespace pkv::fuzz
