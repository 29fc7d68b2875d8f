#include "tests/conformance/faults.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/place.h"

namespace pkv::conformance {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
enum ChildCode { kGood = 0, kBad = 1, kSkipped = 3 };

void expect(pkv_status wanted, const char* function, pkv_status status) {
  if (status == wanted) return;
  throw Failure(fmt::format("{}: status {}, wanted {}: {}", function, pkv_status_name(status),
                            pkv_status_name(wanted), pkv_last_error()));
}

void expect_works(const Place& place) {
  std::vector<uint8_t> bytes(1000, 7);
  uint8_t* memory = place.allocate(1000);
  place.copy(memory, bytes.data(), 1000);
  std::fill(bytes.begin(), bytes.end(), uint8_t{0});
  place.copy(bytes.data(), memory, 1000);
  place.release(memory);
  for (const uint8_t byte : bytes) {
    if (byte != 7) throw Failure("a copy to the device and back gave other bytes");
  }
}

// More than there is at once, then all that there is in pieces.
void exhaust(const Place& place, int32_t kind, int64_t piece, int64_t most) {
  void* memory = nullptr;
  expect(PKV_RESOURCE_EXHAUSTED, "pkv_device_alloc of 2^60 bytes",
         pkv_device_alloc(place.device(), kind, int64_t{1} << 60, &memory));
  const std::string text = pkv_last_error();
  if (text.find("1152921504606846976") == std::string::npos) {
    throw Failure("the text names no bytes: " + text);
  }
  std::vector<void*> pieces;
  pkv_status status = PKV_OK;
  while (status == PKV_OK && static_cast<int64_t>(pieces.size()) * piece < most) {
    status = pkv_device_alloc(place.device(), kind, piece, &memory);
    if (status == PKV_OK) pieces.push_back(memory);
  }
  for (void* one : pieces) expect(PKV_OK, "pkv_device_free", pkv_device_free(place.device(), one));
  if (status != PKV_OK) expect(PKV_RESOURCE_EXHAUSTED, "pkv_device_alloc, in pieces", status);
  expect_works(place);
}

void device_memory(const Place& place) {
  if (place.device_type() == PKV_DEVICE_CPU) throw Skip("the device is the host");
  exhaust(place, PKV_ALLOC_DEVICE, int64_t{1} << 31, int64_t{1} << 38);
}
// Not to the end: the system would end this process, or another.
void host_memory(const Place& place) { exhaust(place, PKV_ALLOC_HOST, 1 << 20, 1 << 22); }

// Keys at an address that nobody has: the kernel fails, which a wait says, and all after it fails.
void failing_kernel(const Place& place) {
  if (place.device_type() == PKV_DEVICE_CPU) throw Skip("the device is the host");
  pkv_config* config = nullptr;
  expect(PKV_OK, "pkv_config_create", pkv_config_create("default", &config));
  for (const auto& [name, value] : {std::pair("head_dim", "64"), std::pair("center", "off"),
                                    std::pair("balance", "off"), std::pair("tail", "drop")}) {
    expect(PKV_OK, "pkv_config_set", pkv_config_set(config, name, value));
  }
  const std::vector<float> ones(64, 1.0F);
  const std::vector<float> zeros(64, 0.0F);
  pkv_codec_data data = {};
  expect(PKV_OK, "pkv_codec_data_init", pkv_codec_data_init(&data, sizeof data));
  data.kv_heads = 1;
  data.center = zeros.data();
  data.balance = ones.data();
  pkv_codec* codec = nullptr;
  expect(PKV_OK, "pkv_codec_import", pkv_codec_import(place.device(), config, &data, &codec));
  pkv_index* index = nullptr;
  expect(PKV_OK, "pkv_index_create", pkv_index_create(place.device(), codec, 1, 1000, &index));

  const int64_t shape[] = {1, 100, 64};
  pkv_tensor keys = {};
  keys.data = reinterpret_cast<void*>(uintptr_t{0x10000});
  keys.device_type = place.device_type();
  keys.device_id = place.device_id();
  keys.ndim = 3;
  keys.dtype = PKV_DTYPE_F32;
  keys.shape = shape;
  const pkv_status status = pkv_index_append_sync(index, place.stream(), 0, &keys, nullptr);
  if (status == PKV_OK) throw Failure("keys at an address that nobody has were taken");
  const std::string text = pkv_last_error();
  if (text.empty()) throw Failure("no text with the failure");
  fmt::print("  said: {}\n", text);
  if (pkv_stream_sync(place.stream()) == PKV_OK) {
    throw Failure("a wait on the failed stream says that all is well");
  }
  pkv_index_destroy(index);
  pkv_codec_destroy(codec);
  pkv_config_destroy(config);
}

using Body = void (*)(const Place&);

int in_child(const Options& options, Body body) {
  try {
    const Runtime runtime = open_runtime();
    const Place place(runtime.get(), backend_name(runtime.get(), options.backend), options.set);
    body(place);
    return kGood;
  } catch (const Skip& skip) {
    fmt::print("  skipped: {}\n", skip.what());
    return kSkipped;
  } catch (const std::exception& error) {
    fmt::print("  {}\n", error.what());
    return kBad;
  }
}

// What became of a child: "ok", "skipped", or what is wrong.
std::string wait_for(pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  int state = 0;
  while (waitpid(child, &state, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &state, 0);
      return "HANGS";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (WIFSIGNALED(state)) return fmt::format("FAILED: ended by signal {}", WTERMSIG(state));
  if (WEXITSTATUS(state) == kSkipped) return "skipped";
  return WEXITSTATUS(state) == kGood ? "ok" : "FAILED";
}

}  // namespace

int run_faults(const Options& options) {
  const std::pair<const char*, Body> faults[] = {{"device memory runs out", device_memory},
                                                 {"host memory runs out", host_memory},
                                                 {"a kernel fails", failing_kernel}};
  int wrong = 0;
  for (const auto& [name, body] : faults) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error(fmt::format("fork: {}", std::strerror(errno)));
    if (child == 0) {
      const int code = in_child(options, body);
      std::fflush(nullptr);
      _exit(code);
    }
    const std::string outcome = wait_for(child);
    fmt::print("{}: {}\n", name, outcome);
    if (outcome != "ok" && outcome != "skipped") ++wrong;
  }
  return wrong;
}

}  // namespace pkv::conformance
