#include "backends/gpu/mapped_memory.h"

#include <string>

#include "doctest/doctest.h"

namespace pkv::gpu {
namespace {

// A host that keeps what a backend says.
struct Said {
  Said() {
    host.struct_size = sizeof host;
    host.user = this;
    host.report = [](const pkv_host* from, const char* text) { of(from).report = text; };
    host.log = [](const pkv_host* from, int32_t level, const char* text) {
      of(from).log = std::to_string(level) + " " + text;
    };
  }
  static Said& of(const pkv_host* host) { return *static_cast<Said*>(host->user); }

  pkv_host host = {};
  std::string report, log;
};

TEST_CASE("mapped memory: a device that has all three, or whose runtime tells nothing, is taken") {
  for (const MappedMemory has : {MappedMemory{1, 1, 1}, MappedMemory{}}) {
    Said said;
    CHECK(check_mapped(&said.host, "device 0 (X)", "cudaDevAttr", has) == PKV_OK);
    CHECK(said.report.empty());
    CHECK(said.log.empty());
  }
}

TEST_CASE("mapped memory: a device whose kernels do not read host memory is refused by attribute") {
  const struct {
    MappedMemory has;
    const char* attribute;
  } rows[] = {{{0, 1, 1}, "cudaDevAttrUnifiedAddressing=0"},
              {{1, 0, 1}, "cudaDevAttrCanMapHostMemory=0"},
              {{-1, 0, -1}, "cudaDevAttrCanMapHostMemory=0"},
              {{0, 0, 0}, "cudaDevAttrUnifiedAddressing=0"}};
  for (const auto& row : rows) {
    CAPTURE(row.attribute);
    Said said;
    CHECK(check_mapped(&said.host, "device 3 (X)", "cudaDevAttr", row.has) == PKV_UNAVAILABLE);
    CHECK(said.report.find(std::string("device 3 (X): ") + row.attribute) == 0);
    CHECK(said.report.find("backend cpu") != std::string::npos);
    CHECK(said.log.empty());
  }
}

TEST_CASE(
    "mapped memory: where registered memory is not read, memory is allocated, and callers told") {
  Said said;
  CHECK(check_mapped(&said.host, "device 0 (X)", "cudaDevAttr", {1, 1, 0}) == PKV_OK);
  CHECK(said.report.empty());
  CHECK(said.log.find("1 device 0 (X): cudaDevAttrCanUseHostPointerForRegisteredMem=0") == 0);
  CHECK(said.log.find("pkv_device_alloc") != std::string::npos);
}

}  // namespace
}  // namespace pkv::gpu
