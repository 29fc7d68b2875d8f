#include "backends/hip/memory.h"

#include "doctest/doctest.h"
#include "tests/unit/hip/reports.h"

namespace pkv::hip {
namespace {

constexpr MemoryAttributes kDiscrete = {.unified_addressing = 1,
                                        .can_map_host_memory = 1,
                                        .integrated = 0,
                                        .concurrent_managed_access = 0,
                                        .fine_grain_support = 1};

TEST_CASE("memory: a discrete card gets fine-grained pinned memory") {
  Reports reports;
  HostMemory kind{};
  CHECK(choose_memory(&reports.host, "device 0", kDiscrete, &kind) == PKV_OK);
  CHECK(kind == HostMemory::kPinnedFine);
}

TEST_CASE("memory: coarse-grained where the card reports no fine grain") {
  Reports reports;
  HostMemory kind{};
  MemoryAttributes has = kDiscrete;
  has.fine_grain_support = 0;
  has.concurrent_managed_access = 1;  // pinned comes first
  CHECK(choose_memory(&reports.host, "device 0", has, &kind) == PKV_OK);
  CHECK(kind == HostMemory::kPinnedCoarse);
}

TEST_CASE("memory: an APU shares one allocation, also where it has managed memory") {
  Reports reports;
  HostMemory kind{};
  MemoryAttributes has = kDiscrete;
  has.integrated = 1;
  has.concurrent_managed_access = 1;
  CHECK(choose_memory(&reports.host, "device 0", has, &kind) == PKV_OK);
  CHECK(kind == HostMemory::kShared);
}

TEST_CASE("memory: managed only where the device reports concurrent access to it") {
  Reports reports;
  HostMemory kind{};
  MemoryAttributes has = kDiscrete;
  has.can_map_host_memory = 0;
  has.concurrent_managed_access = 1;
  CHECK(choose_memory(&reports.host, "device 0", has, &kind) == PKV_OK);
  CHECK(kind == HostMemory::kManaged);
  for (const int missing : {0, -1}) {
    has.concurrent_managed_access = missing;
    CHECK(choose_memory(&reports.host, "device 0", has, &kind) == PKV_UNAVAILABLE);
    CHECK(reports.has("hipDeviceAttributeCanMapHostMemory=0"));
    CHECK(reports.has("hipDeviceAttributeConcurrentManagedAccess="));
    CHECK(reports.has("HSA_XNACK=1"));
  }
}

TEST_CASE("memory: a runtime that tells nothing is taken for a discrete card") {
  Reports reports;
  HostMemory kind{};
  CHECK(choose_memory(&reports.host, "device 0", MemoryAttributes{}, &kind) == PKV_OK);
  CHECK(kind == HostMemory::kPinnedFine);
}

TEST_CASE("memory: without unified addressing a device is refused, whatever else it has") {
  Reports reports;
  HostMemory kind{};
  MemoryAttributes has = kDiscrete;
  has.unified_addressing = 0;
  for (const int integrated : {0, 1}) {
    has.integrated = integrated;
    reports.text.clear();
    CHECK(choose_memory(&reports.host, "device 3 (X)", has, &kind) == PKV_UNAVAILABLE);
    CHECK(reports.has("device 3 (X): hipDeviceAttributeUnifiedAddressing=0"));
    CHECK(reports.has("backend cpu"));
  }
  CHECK(memory_named(&reports.host, "device 3 (X)", has, "fine", &kind) == PKV_UNAVAILABLE);
}

TEST_CASE("memory: a kind that is asked for is given, or refused with the attribute it needs") {
  Reports reports;
  const struct {
    const char* name;
    HostMemory kind;
    const char* attribute;  // nullptr: kDiscrete has it
  } rows[] = {{"fine", HostMemory::kPinnedFine, nullptr},
              {"coarse", HostMemory::kPinnedCoarse, nullptr},
              {"shared", HostMemory::kShared, "hipDeviceAttributeIntegrated"},
              {"managed", HostMemory::kManaged, "hipDeviceAttributeConcurrentManagedAccess"}};
  for (const auto& row : rows) {
    CAPTURE(row.name);
    HostMemory kind{};
    const pkv_status status = memory_named(&reports.host, "device 0", kDiscrete, row.name, &kind);
    CHECK(status == (row.attribute == nullptr ? PKV_OK : PKV_FAILED_PRECONDITION));
    if (row.attribute == nullptr) {
      CHECK(kind == row.kind);
    } else {
      CHECK(reports.has(row.attribute));
      CHECK(reports.has("host_memory=fine is what it has"));
    }
    CHECK(name_of(row.kind) == std::string(row.name));
  }
}

TEST_CASE("memory: an unknown kind is refused with those there are") {
  Reports reports;
  HostMemory kind{};
  CHECK(memory_named(&reports.host, "device 0", kDiscrete, "pinned", &kind) ==
        PKV_INVALID_ARGUMENT);
  CHECK(reports.text == "host_memory=pinned, accepted: fine, coarse, shared, managed");
}

}  // namespace
}  // namespace pkv::hip
