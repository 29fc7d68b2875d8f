// Devices, buffers, streams and events against a backend that misbehaves.
#include "core/runtime/device.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"
#include "tests/unit/runtime/plugins.h"

namespace pkv {
namespace {

using test::PluginFolder;
using test::make_registry;

absl::StatusOr<std::shared_ptr<const Device>> try_open(const std::string& fault) {
  const PluginFolder folder;
  folder.add("fake", fault);
  return make_registry(folder.path())->open_device("fake", 0);
}

std::shared_ptr<const Device> open(const std::string& fault = "") {
  auto device = try_open(fault);
  REQUIRE(device.ok());
  return *std::move(device);
}

std::string text_of(const absl::Status& status) { return std::string(to_std(status.message())); }

TEST_CASE("device: a failure to open carries the backend's text, or says that there is none") {
  const auto silent = try_open("no_open");
  CHECK(silent.status().code() == absl::StatusCode::kUnavailable);
  CHECK(text_of(silent.status()) == "fake: opening device 0: the backend gave no reason");
  CHECK(text_of(try_open("no_info").status()) == "fake: opening device 0: the device fell off");
  CHECK(try_open("null_device").status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("device: text that an earlier call left is not blamed on a later one") {
  const auto lost = open("lost");
  const auto odd = open("odd_status");
  const auto stream = Stream::create(lost);
  REQUIRE(stream.ok());
  const absl::Status sync = stream->sync();
  CHECK(sync.code() == absl::StatusCode::kUnavailable);
  CHECK(text_of(sync) == "fake: waiting for a stream: device lost at 0x40");
  const auto buffer = Buffer::create(odd, PKV_MEMORY_DEVICE, 64);
  CHECK(buffer.status().code() == absl::StatusCode::kInternal);
  CHECK(text_of(buffer.status()).find("99") != std::string::npos);
  CHECK(text_of(buffer.status()).find("lost") == std::string::npos);
}

TEST_CASE("device: a report does not touch the last error of the thread") {
  set_last_error("of the call before");
  const auto stream = Stream::create(open("lost"));
  CHECK_FALSE(stream->sync().ok());
  CHECK(std::string(last_error()) == "of the call before");
}

TEST_CASE("device: reports are cut, not overrun") {
  const auto device = open();
  const pkv_host* host = device->host().table();
  const std::string longer(10000, 'y');
  clear_report();
  host->report(host, longer.c_str());
  CHECK(last_report().size() == kLastErrorBytes - 1);
  host->report(host, nullptr);
  CHECK(last_report().size() == kLastErrorBytes - 1);
  clear_report();
  CHECK(last_report().empty());
}

TEST_CASE("buffer: refusals name kind and bytes") {
  const auto device = open();
  CHECK(text_of(Buffer::create(device, 0, 1).status()).find("kind=0") != std::string::npos);
  CHECK(text_of(Buffer::create(device, 3, 1).status()).find("kind=3") != std::string::npos);
  CHECK(text_of(Buffer::create(device, 1, -1).status()).find("bytes=-1") != std::string::npos);
  const auto large = Buffer::create(device, PKV_MEMORY_HOST, int64_t{1} << 40);
  CHECK(large.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(text_of(large.status()) ==
        "fake: allocating 1099511627776 bytes of host memory: 1 MiB is all there is");
}

TEST_CASE("buffer: no bytes are no memory; moving leaves nothing behind") {
  const auto device = open();
  auto none = Buffer::create(device, PKV_MEMORY_DEVICE, 0);
  REQUIRE(none.ok());
  CHECK(none->data() == nullptr);
  CHECK(none->bytes() == 0);
  auto some = Buffer::create(device, PKV_MEMORY_DEVICE, 1);
  REQUIRE(some.ok());
  void* data = some->data();
  CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
  Buffer taken = *std::move(some);
  CHECK(taken.data() == data);
  *none = std::move(taken);
  CHECK(none->data() == data);
  CHECK(none->bytes() == 1);
  *none = Buffer();
  CHECK(none->data() == nullptr);
}

TEST_CASE("buffer: a backend's NULL or crooked address is not handed on") {
  CHECK(Buffer::create(open("null_memory"), 1, 64).status().code() == absl::StatusCode::kInternal);
  CHECK(Buffer::create(open("misaligned"), 1, 64).status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("stream: copies and fills, nothing for 0 bytes, refuses fewer") {
  const auto device = open();
  const auto stream = Stream::create(device);
  REQUIRE(stream.ok());
  char target[4] = {0, 0, 0, 0};
  CHECK(stream->copy(target, "abcd", 4).ok());
  CHECK(std::memcmp(target, "abcd", 4) == 0);
  CHECK(stream->fill(target, 0xff, 2).ok());
  CHECK(std::memcmp(target,
                    "\xff\xff"
                    "cd",
                    4) == 0);
  CHECK(stream->copy(nullptr, nullptr, 0).ok());
  CHECK(stream->fill(nullptr, 0, 0).ok());
  CHECK(stream->copy(target, target, -1).code() == absl::StatusCode::kInvalidArgument);
  CHECK(stream->fill(target, 0, -1).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("stream, event: success without a handle is a fault of the backend") {
  CHECK(Stream::create(open("null_stream")).status().code() == absl::StatusCode::kInternal);
  CHECK(Event::create(open("null_event")).status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("event: stream and event belong to one device") {
  const auto device = open();
  const auto other = open("debug");
  const auto stream = Stream::create(device);
  const auto event = Event::create(device);
  const auto foreign = Event::create(other);
  CHECK(event->record(*stream).ok());
  CHECK(event->wait(*stream).ok());
  CHECK(foreign->record(*stream).code() == absl::StatusCode::kInvalidArgument);
  CHECK(foreign->wait(*stream).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("host: its memory is used again, never freed") {
  const pkv_host* first = nullptr;
  {
    const auto host = Host::create({});
    first = host->table();
    CHECK(first->abi_major == PKV_BACKEND_ABI_MAJOR);
    CHECK(first->struct_size == sizeof(pkv_host));
    CHECK(first->build_flags == build_flags());
  }
  first->log(first, 0, "from a backend that kept it");
  const auto host = Host::create({});
  CHECK(host->table() == first);
}

}  // namespace
}  // namespace pkv
