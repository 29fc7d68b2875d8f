// .safetensors: JSON header, metadata, and every tensor that is called for.
#include "tests/fuzz/reader.h"
#include "tools/reader_safetensors.h"
#include "tools/status.h"

namespace pkv::fuzz {
namespace {

std::string safetensors(const std::string& header, std::size_t data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> seeds() {
  return {safetensors(R"({"__metadata__": {"a": "b"}, "k": {"dtype": "F32", "shape": [3, 4], )"
                      R"("data_offsets": [0, 48]}})",
                      48),
          safetensors(R"({"k":{"dtype":"BF16","shape":[2,3,4],"data_offsets":[4,52]},)"
                      R"("v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                      52),
          safetensors(R"({"k":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8),
          safetensors(R"({"k":{"dtype":"F8_E4M3","shape":[0,9],"data_offsets":[0,0]}})", 0),
          safetensors("{}", 0)};
}

void run(Input input) {
  static MemoryFile file;
  file.fill(input);
  auto opened = cli::SafetensorsFile::open(file.path());
  if (!opened.ok()) return check_tensor(opened.status(), input.size());
  for (const char* name : {"k", "v", ""}) {
    auto tensor = cli::SafetensorsFile::tensor(*opened, name);
    require((*opened)->has(name) || !tensor.ok(), "only a tensor that is there is opened");
    check_tensor(tensor, input.size());
  }
  std::size_t metadata = 0;
  for (const auto& [name, value] : (*opened)->metadata()) metadata += name.size() + value.size();
  // JSON escapes take more room than what they stand for.
  require(metadata <= input.size(), "metadata is no larger than its file");
}

}  // namespace pkv::fuzz
