// .npy: header and data.
#include <cstdint>

#include "tests/fuzz/reader.h"
#include "tools/reader_npy.h"

namespace pkv::fuzz {
namespace {

std::string npy(int version, const std::string& header, std::size_t data) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const auto length = static_cast<uint32_t>(header.size());
  bytes.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return bytes + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n", 48),
      npy(2, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3, 4), }\n", 48),
      npy(3, "{\"shape\": (), 'descr': '<i8', 'fortran_order': False}", 8),
      npy(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (0, 7,), }", 0),
      npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 0), }", 0)};
}

void run(Input input) {
  static MemoryFile file;
  file.fill(input);
  auto opened = cli::InputFile::open(file.path());
  require(opened.ok(), "the file is there");
  check_tensor(cli::open_npy(*std::move(opened), "input.npy"), input.size());
}

}  // namespace pkv::fuzz
