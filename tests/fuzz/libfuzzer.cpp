// A target under libFuzzer. With PKV_FUZZ_SEEDS=FOLDER in the environment it leaves its seeds there
// and ends: what the fuzzer starts from.
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/fuzz.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerInitialize(int* count,
                                                                           char*** words);
extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             std::size_t size);

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*words*/) {
  const char* folder = std::getenv("PKV_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : pkv::fuzz::seeds()) {
    std::ofstream file(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
  }
  std::_Exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  pkv::fuzz::run({data, size});
  return 0;
}
