// The table of cpu_ref: discovery, memory, handles, and what its stages refuse.
#include "backends/cpu_ref/device.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

#include "pariskv/pariskv_backend.hpp"
#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

constexpr uint32_t kAbi = PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR;

struct Host {
  pkv_host host = {};
  std::string text;
  Host() {
    host.struct_size = sizeof host;
    host.user = &text;
    host.report = [](const pkv_host* self, const char* what) {
      *static_cast<std::string*>(self->user) = what;
    };
  }
};

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("cpu_ref: the query accepts its own interface and later minor versions only") {
  Host host;
  const pkv_backend* table = pkv_cpu_ref_query(kAbi, &host.host);
  REQUIRE(table != nullptr);
  CHECK(table == pkv_cpu_ref_query(kAbi + 1, &host.host));
  CHECK(host.text.empty());
  CHECK(pkv_cpu_ref_query(kAbi + 0x10000, &host.host) == nullptr);
  CHECK(mentions(host.text, "backend interface 2.0"));
  CHECK(pkv_cpu_ref_query(0x0000ffff, &host.host) == nullptr);
  CHECK(mentions(host.text, "backend interface 0.65535"));
  CHECK(table->struct_size == sizeof(pkv_backend));
  CHECK(std::string(table->name) == "cpu_ref");
}

TEST_CASE("cpu_ref: one device, the host") {
  Host host;
  const pkv_backend* table = pkv_cpu_ref_query(kAbi, &host.host);
  int32_t count = 0;
  CHECK(table->device_count(&host.host, &count) == PKV_OK);
  CHECK(count == 1);
  pkv_backend_device_info info = {};
  info.struct_size = sizeof info;
  CHECK(table->device_info(&host.host, 0, &info) == PKV_OK);
  CHECK(info.device_type == PKV_DEVICE_CPU);
  CHECK(info.lanes == 1);
  CHECK(info.struct_size == sizeof info);
  CHECK(table->device_info(&host.host, 1, &info) == PKV_OUT_OF_RANGE);
  CHECK(mentions(host.text, "ordinal=1"));
  pkv_backend_device* device = nullptr;
  CHECK(table->device_open(&host.host, -1, &device) == PKV_OUT_OF_RANGE);
  CHECK(device == nullptr);
}

TEST_CASE("cpu_ref: memory is aligned to 256, and its lack is reported with the bytes") {
  Oracle oracle(geometry_of(8), 1);
  for (const int64_t bytes : {1, 255, 4097}) {
    void* data = nullptr;
    REQUIRE(oracle.table->memory_alloc(oracle.device, PKV_MEMORY_HOST, bytes, &data) == PKV_OK);
    CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
    oracle.table->memory_free(oracle.device, PKV_MEMORY_HOST, data, bytes);
  }
  // A sanitizer's allocator ends the program instead of returning NULL.
  if ((backend::build_flags() & (PKV_BUILD_ASAN | PKV_BUILD_TSAN)) != 0) return;
  void* data = nullptr;
  const int64_t bytes = int64_t{1} << 60;
  CHECK(oracle.table->memory_alloc(oracle.device, PKV_MEMORY_DEVICE, bytes, &data) ==
        PKV_RESOURCE_EXHAUSTED);
  CHECK(data == nullptr);
  CHECK(mentions(oracle.reported, "1152921504606846976"));
  CHECK(mentions(oracle.reported, "host"));
}

TEST_CASE("cpu_ref: streams and events are distinct handles, native streams are refused") {
  Oracle oracle(geometry_of(8), 1);
  pkv_backend_stream* first = nullptr;
  pkv_backend_stream* second = nullptr;
  REQUIRE(oracle.table->stream_create(oracle.device, &first) == PKV_OK);
  REQUIRE(oracle.table->stream_wrap(oracle.device, 0, &second) == PKV_OK);
  CHECK(first != second);
  pkv_backend_event* event = nullptr;
  REQUIRE(oracle.table->event_create(oracle.device, &event) == PKV_OK);
  CHECK(oracle.table->event_record(oracle.device, first, event) == PKV_OK);
  CHECK(oracle.table->event_wait(oracle.device, second, event) == PKV_OK);
  CHECK(oracle.table->stream_sync(oracle.device, second) == PKV_OK);
  pkv_backend_stream* native = nullptr;
  CHECK(oracle.table->stream_wrap(oracle.device, 0x1234, &native) == PKV_INVALID_ARGUMENT);
  CHECK(mentions(oracle.reported, "0x1234"));
  oracle.table->event_destroy(oracle.device, event);
  oracle.table->stream_destroy(oracle.device, first);
  oracle.table->stream_destroy(oracle.device, second);
}

// The sentence with which store_row_bytes, whose check every stage shares, refuses a geometry.
std::string refusal(const pkv_geometry& geometry) {
  Oracle oracle(geometry_of(8), 1);
  int64_t bytes = 0;
  const pkv_status status = oracle.table->store_row_bytes(oracle.device, &geometry, 1, &bytes);
  if (status == PKV_OK) return "";
  CHECK(status == PKV_UNIMPLEMENTED);
  return oracle.reported;
}

TEST_CASE("cpu_ref: geometries are accepted as section 9 says, refused with value and range") {
  for (int32_t d = 8; d <= 576; d += 8) CHECK(refusal(geometry_of(d, 584 - d)).empty());
  for (const int32_t d : {-8, 0, 4, 12, 577, 584}) {
    const std::string text = refusal(geometry_of(d));
    CHECK(mentions(text, "head_dim=" + std::to_string(d)));
    CHECK(mentions(text, "from 8 to 576"));
    if (d != 0) CHECK(mentions(refusal(geometry_of(16, d)), "value_dim=" + std::to_string(d)));
  }
  pkv_geometry geometry = geometry_of(16, 16);
  geometry.rounds = 2;
  CHECK(refusal(geometry).empty());
  geometry.head_dim = 24;
  CHECK(mentions(refusal(geometry), "rounds=2"));
  geometry.rounds = 3;
  CHECK(mentions(refusal(geometry), "rounds=3"));
  geometry = geometry_of(16, 16);
  geometry.codec = 4;
  CHECK(mentions(refusal(geometry), "codec=4"));
  geometry = geometry_of(16, 16);
  geometry.sketch_bits = 3;
  CHECK(mentions(refusal(geometry), "sketch_bits=3"));
  for (const int32_t stride : {1, 16, 65536}) {
    CHECK(refusal(test::with_sketch(geometry_of(16, 16), 4, stride)).empty());
  }
  for (const int32_t stride : {-1, 0, 65537}) {
    CHECK(mentions(refusal(test::with_sketch(geometry_of(16, 16), 4, stride)),
                   "sketch_stride=" + std::to_string(stride)));
  }
  geometry = geometry_of(16, 16);
  geometry.sketch_stride = 16;
  CHECK(mentions(refusal(geometry), "sketch_stride=16"));
  geometry = geometry_of(16);
  geometry.sketch_stride = 1;
  CHECK(mentions(refusal(geometry), "sketch_stride=1"));
  geometry = geometry_of(16);
  geometry.value_norm = 1;
  CHECK(mentions(refusal(geometry), "value_norm=1"));
  geometry = geometry_of(16, 24);
  geometry.v_source = PKV_V_SOURCE_K_PREFIX;
  CHECK(mentions(refusal(geometry), "value_dim=24"));
}

TEST_CASE("cpu_ref: stages refuse dtypes and options that the specification lacks") {
  Oracle oracle(geometry_of(16, 8), 4);
  Tensor queries = Tensor::random({1, 3, 16}, 1);
  const test::Candidates candidates = test::all_candidates(4);
  const auto rerank = oracle.table->rerank.supports;
  auto args = oracle.rerank_args(queries, {4}, candidates, 2);
  CHECK(rerank(oracle.device, &args) == PKV_OK);
  args.queries.dtype = PKV_DTYPE_I32;
  CHECK(rerank(oracle.device, &args) == PKV_UNIMPLEMENTED);
  CHECK(mentions(oracle.reported, "dtype=6 of queries"));

  args = oracle.rerank_args(queries, {4}, candidates, 2);
  args.share = 0.5;
  args.rank = PKV_RANK_MEAN;
  CHECK(rerank(oracle.device, &args) == PKV_UNIMPLEMENTED);
  CHECK(mentions(oracle.reported, "share"));

  args = oracle.rerank_args(queries, {4}, candidates, 65537);
  CHECK(rerank(oracle.device, &args) == PKV_UNIMPLEMENTED);
  CHECK(mentions(oracle.reported, "k=65537"));

  args = oracle.rerank_args(queries, {4}, candidates, 2);
  args.weigh_norms = 1;
  CHECK(rerank(oracle.device, &args) == PKV_UNIMPLEMENTED);
  CHECK(mentions(oracle.reported, "weigh_norms=1"));

  for (const float scale : {0.0F, -1.0F, 2e6F, test::kNan}) {
    args = oracle.rerank_args(queries, {4}, candidates, 2);
    args.scale = scale;
    CHECK(rerank(oracle.device, &args) == PKV_UNIMPLEMENTED);
    CHECK(mentions(oracle.reported, "scale="));
  }

  Oracle tier(geometry_of(16, 0, PKV_CODEC_POLAR4, PKV_VOTE_TIER), 4);
  CHECK_THROWS_WITH(tier.vote(queries, {4}, PKV_VOTE_GROUP_HEADS),
                    doctest::Contains("vote=tier with vote_group=2"));
  Oracle two(geometry_of(16, 0, PKV_CODEC_POLAR4, PKV_VOTE_TIER, 2), 4);
  CHECK_THROWS_WITH(two.vote(queries, {4}), doctest::Contains("query_heads=3"));
}

TEST_CASE("backend helpers: guard turns exceptions into statuses with their text") {
  Host host;
  CHECK(backend::guard(&host.host, [] { return pkv_status{PKV_NOT_FOUND}; }) == PKV_NOT_FOUND);
  CHECK(host.text.empty());
  CHECK(backend::guard(&host.host, []() -> pkv_status { throw std::bad_alloc(); }) ==
        PKV_RESOURCE_EXHAUSTED);
  CHECK(host.text == "out of host memory");
  CHECK(backend::guard(&host.host, []() -> pkv_status { throw std::runtime_error("lost 7"); }) ==
        PKV_INTERNAL);
  CHECK(host.text == "unexpected exception: lost 7");
  CHECK(backend::guard(&host.host, []() -> pkv_status { throw 7; }) == PKV_INTERNAL);
  CHECK(backend::refuse(nullptr, PKV_ABORTED, "nobody listens") == PKV_ABORTED);
  CHECK(backend::refuse(&host.host, PKV_ABORTED, "%s", std::string(2000, 'x').c_str()) ==
        PKV_ABORTED);
  CHECK(host.text.size() == 511);
}

}  // namespace
}  // namespace pkv
