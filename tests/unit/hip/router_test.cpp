#include "backends/hip/router.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "tests/unit/hip/reports.h"

namespace pkv::hip {
namespace {

// Two tables, told apart by the width of the lane groups of their devices; devices 0 and 2 are of
// the first, device 1 of the second, device 3 of neither.
const char* const kNames[] = {"gfx90a:sramecc+:xnack-", "gfx1030", "gfx90a", "gfx908:xnack-"};

struct FakeDevice {
  int32_t lanes;
  int32_t ordinal;
};
std::vector<std::string>& calls() {
  static std::vector<std::string> all;
  return all;
}
void note(pkv_backend_device* device, const char* slot) {
  const auto& fake = *reinterpret_cast<const FakeDevice*>(device);
  calls().push_back(std::to_string(fake.lanes) + " " + std::to_string(fake.ordinal) + " " + slot);
}

template <int32_t kLanes>
pkv_backend make_table() {
  pkv_backend table = {};
  table.name = "fake";
  table.device_count = [](const pkv_host*, int32_t* out) {
    *out = 4;
    return pkv_status{PKV_OK};
  };
  table.device_info = [](const pkv_host*, int32_t, pkv_backend_device_info* out) {
    out->lanes = kLanes;
    return pkv_status{PKV_OK};
  };
  table.device_open = [](const pkv_host*, int32_t ordinal, pkv_backend_device** out) {
    *out = reinterpret_cast<pkv_backend_device*>(new FakeDevice{kLanes, ordinal});
    return pkv_status{PKV_OK};
  };
  table.device_close = [](pkv_backend_device* device) {
    note(device, "close");
    delete reinterpret_cast<FakeDevice*>(device);
  };
  table.memory_alloc = [](pkv_backend_device* device, int32_t kind, int64_t bytes, void** out) {
    note(device, "alloc");
    *out = reinterpret_cast<void*>(static_cast<uintptr_t>(kind * 1000 + bytes));
    return pkv_status{PKV_RESOURCE_EXHAUSTED};
  };
  table.stream_sync = [](pkv_backend_device* device, pkv_backend_stream*) {
    note(device, "sync");
    return pkv_status{PKV_OK};
  };
  table.vote.supports = [](pkv_backend_device* device, const pkv_vote_args*) {
    note(device, "supports");
    return pkv_status{PKV_UNIMPLEMENTED};
  };
  table.vote.scratch_bytes = [](pkv_backend_device* device, const pkv_vote_args*, int64_t* out) {
    note(device, "scratch");
    *out = kLanes;
    return pkv_status{PKV_OK};
  };
  table.vote.run = [](pkv_backend_device* device, pkv_backend_stream*, const pkv_vote_args*,
                      void*) {
    note(device, "run");
    return pkv_status{PKV_OK};
  };
  return table;
}

const pkv_backend kWide = make_table<64>();
const pkv_backend kNarrow = make_table<32>();

struct Opened {
  explicit Opened(int32_t ordinal) {
    CHECK(table.device_open(&reports.host, ordinal, &device) == PKV_OK);
    calls().clear();
  }
  Reports reports;
  pkv_backend table = route(kWide);
  pkv_backend_device* device = nullptr;
};

}  // namespace

std::span<const Architecture> architectures() {
  static const Architecture all[] = {{"gfx90a", &kWide}, {"gfx1030", &kNarrow}};
  return all;
}

pkv_status name_architecture(const pkv_host*, int32_t ordinal, char* out, int32_t bytes) {
  std::snprintf(out, static_cast<size_t>(bytes), "%s", kNames[ordinal]);
  return PKV_OK;
}

namespace {

TEST_CASE("router: a name counts up to its features, and as a whole") {
  const auto all = architectures();
  CHECK(find_architecture(all, "gfx90a:sramecc+:xnack-") == &all[0]);
  CHECK(find_architecture(all, "gfx1030") == &all[1]);
  CHECK(find_architecture(all, "gfx103") == nullptr);
  CHECK(find_architecture(all, "gfx10300") == nullptr);
  CHECK(find_architecture(all, "") == nullptr);
}

TEST_CASE("router: calls go to the table of the device's architecture, with its own device") {
  for (const int32_t ordinal : {0, 1, 2}) {
    Opened opened(ordinal);
    const std::string lanes = ordinal == 1 ? "32 " : "64 ";
    const std::string who = lanes + std::to_string(ordinal) + " ";
    pkv_backend_device_info info = {};
    CHECK(opened.table.device_info(&opened.reports.host, ordinal, &info) == PKV_OK);
    CHECK(info.lanes == (ordinal == 1 ? 32 : 64));
    void* memory = nullptr;
    CHECK(opened.table.memory_alloc(opened.device, 2, 7, &memory) == PKV_RESOURCE_EXHAUSTED);
    CHECK(memory == reinterpret_cast<void*>(2007));
    CHECK(opened.table.stream_sync(opened.device, nullptr) == PKV_OK);
    int64_t bytes = 0;
    CHECK(opened.table.vote.supports(opened.device, nullptr) == PKV_UNIMPLEMENTED);
    CHECK(opened.table.vote.scratch_bytes(opened.device, nullptr, &bytes) == PKV_OK);
    CHECK(bytes == info.lanes);
    CHECK(opened.table.vote.run(opened.device, nullptr, nullptr, nullptr) == PKV_OK);
    opened.table.device_close(opened.device);
    CHECK(calls() == std::vector<std::string>{who + "alloc", who + "sync", who + "supports",
                                              who + "scratch", who + "run", who + "close"});
  }
}

TEST_CASE("router: a device without code is refused with its name and the way out") {
  Opened opened(0);
  pkv_backend_device* device = nullptr;
  CHECK(opened.table.device_open(&opened.reports.host, 3, &device) == PKV_UNAVAILABLE);
  CHECK(device == nullptr);
  CHECK(opened.reports.text ==
        "device 3: gcnArchName=gfx908:xnack-, but this build has code for gfx90a, gfx1030: build "
        "with -DPARISKV_HIP_ARCHITECTURES=gfx908");
  opened.table.device_close(opened.device);
}

// The slots that take a device, as numbers.
std::vector<uintptr_t> slots_of(const pkv_backend& table) {
  const auto* first = reinterpret_cast<const char*>(&table.device_info);
  const auto* end = reinterpret_cast<const char*>(&table.device_parallel);
  std::vector<uintptr_t> slots(static_cast<size_t>(end - first) / sizeof(uintptr_t));
  std::memcpy(slots.data(), first, slots.size() * sizeof(uintptr_t));
  return slots;
}

TEST_CASE("router: every slot that takes a device is routed, those of a later table too") {
  pkv_backend full = kWide;
  std::vector<uintptr_t> marks = slots_of(full);
  for (size_t i = 0; i < marks.size(); ++i) marks[i] = 1 + i;
  std::memcpy(reinterpret_cast<char*>(&full) + offsetof(pkv_backend, device_info), marks.data(),
              marks.size() * sizeof(uintptr_t));
  const std::vector<uintptr_t> routed = slots_of(route(full));
  CHECK(routed.size() > 40);
  for (size_t i = 0; i < routed.size(); ++i) {
    CAPTURE(i);
    CHECK(routed[i] != marks[i]);
    CHECK(routed[i] != 0);
  }
}

TEST_CASE("router: an optional stage that no architecture has stays out") {
  CHECK(slots_of(route(kWide))[slots_of(kWide).size() - 2] == 0);  // step.run
}

}  // namespace
}  // namespace pkv::hip
