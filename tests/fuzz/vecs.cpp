// .fvecs and .bvecs: the same bytes as each.
#include "tests/fuzz/reader.h"
#include "tools/reader_fvecs.h"

namespace pkv::fuzz {
namespace {

std::string vecs(int rows, int32_t dim, std::size_t row_bytes) {
  std::string bytes;
  for (int i = 0; i < rows; ++i) {
    bytes.append(reinterpret_cast<const char*>(&dim), sizeof dim);
    bytes.append(row_bytes, static_cast<char>(i));
  }
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  return {vecs(3, 4, 16), vecs(5, 8, 8), vecs(1, 1, 4), vecs(300, 2, 8), vecs(1, 65536, 65536)};
}

void run(Input input) {
  static MemoryFile file;
  file.fill(input);
  for (const auto type : {cli::ElementType::kF32, cli::ElementType::kU8}) {
    check_tensor(cli::open_vecs(file.path(), type), input.size());
  }
}

}  // namespace pkv::fuzz
