// What a checked view knows, and where its memory may be.
#include "core/base/tensor.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/unit/base/check_text.h"
#include "tests/unit/base/sample_keys.h"

namespace pkv {
namespace {

TEST_CASE("tensor: a dense view knows its shape, strides, bytes and offsets") {
  const SampleKeys keys;
  const absl::StatusOr<TensorView> view = keys.check();
  REQUIRE(view.ok());
  CHECK(view->ndim() == 3);
  CHECK(view->extent(1) == 3);
  CHECK(view->stride(1) == 8);
  CHECK(view->dtype() == PKV_DTYPE_F32);
  CHECK(view->element_bytes() == 4);
  CHECK(view->element_count() == 24);
  CHECK(view->is_dense());
  CHECK_FALSE(view->is_empty());
  CHECK(view->origin() == keys.memory.data());
  CHECK(view->byte_span().begin == 0);
  CHECK(view->byte_span().end == 96);
  CHECK(view->element_offset(0, 2, 5) == 21);
}

TEST_CASE("tensor: no strides means dense, in row-major order") {
  SampleKeys keys;
  keys.shape = {2, 3, 4};
  keys.tensor.strides = nullptr;
  const absl::StatusOr<TensorView> view = keys.check();
  REQUIRE(view.ok());
  CHECK(view->stride(0) == 12);
  CHECK(view->stride(1) == 4);
  CHECK(view->stride(2) == 1);
  CHECK(view->element_offset(1, 2, 3) == 23);
  CHECK(view->is_dense());
}

TEST_CASE("tensor: byte_offset moves the origin") {
  SampleKeys keys;
  keys.tensor.byte_offset = 16;
  const absl::StatusOr<TensorView> view = keys.check();
  REQUIRE(view.ok());
  CHECK(view->origin() == keys.memory.data() + 4);
  CHECK(view->byte_span().end == 96);  // counted from the origin
}

TEST_CASE("tensor: the C struct of a view describes the same elements") {
  SampleKeys keys;
  keys.tensor.byte_offset = 16;
  keys.tensor.strides = nullptr;
  keys.tensor.device_type = PKV_DEVICE_CUDA;
  keys.tensor.device_id = 3;
  const absl::StatusOr<TensorView> view = keys.check();
  REQUIRE(view.ok());
  const pkv_tensor tensor = view->tensor();
  CHECK(tensor.data == keys.memory.data() + 4);
  CHECK(tensor.byte_offset == 0);
  CHECK(tensor.ndim == 3);
  CHECK(tensor.dtype == PKV_DTYPE_F32);
  CHECK(tensor.device_type == PKV_DEVICE_CUDA);
  CHECK(tensor.device_id == 3);
  CHECK(tensor.shape[2] == 8);
  CHECK(tensor.strides[1] == 8);
}

TEST_CASE("tensor: memory of another kind or another device is refused") {
  SampleKeys keys;
  constexpr pkv_device_type kCuda[] = {PKV_DEVICE_CUDA, PKV_DEVICE_CUDA_HOST,
                                       PKV_DEVICE_CUDA_MANAGED};
  constexpr pkv_device_type kCpu[] = {PKV_DEVICE_CPU};
  const auto check = [&keys](pkv_device_type type, int32_t id,
                             std::span<const pkv_device_type> types, int32_t wanted) {
    keys.tensor.device_type = type;
    keys.tensor.device_id = id;
    return check_device("keys", keys.tensor, types, wanted);
  };
  CHECK(check(PKV_DEVICE_CUDA, 1, kCuda, 1).ok());
  CHECK(check(PKV_DEVICE_CUDA_HOST, 0, kCuda, 1).ok());
  CHECK(check(PKV_DEVICE_CUDA_MANAGED, 0, kCuda, 1).ok());
  CHECK(check(PKV_DEVICE_CPU, 0, kCpu, 5).ok());
  check_invalid(check(PKV_DEVICE_CPU, 0, kCuda, 1),
                {"keys: device_type=cpu, accepted: cuda, cuda_host or cuda_managed"});
  check_invalid(check(4, 0, kCuda, 1), {"keys: device_type=4, accepted: cuda"});
  check_invalid(check(PKV_DEVICE_CUDA, 0, kCuda, 1), {"keys: device_id=0, accepted: 1 for cuda"});
  check_invalid(check(PKV_DEVICE_CPU, 1, kCpu, 1), {"keys: device_id=1, accepted: 0 for cpu"});
}

TEST_CASE("tensor: an output shares no byte with an input") {
  SampleKeys keys;
  SampleKeys other;
  const auto rows = [&keys](int64_t first, int64_t count) {
    keys.shape = {1, count, 8};
    keys.tensor.byte_offset = static_cast<uint64_t>(first) * 32;
    return *keys.check();
  };
  const TensorView a = rows(0, 3);
  const TensorView b = rows(3, 2);
  const TensorView c = rows(2, 2);
  CHECK(check_apart("rows", a, "keys", b).ok());
  CHECK(check_apart("rows", b, "keys", a).ok());
  check_invalid(check_apart("rows", a, "keys", c), {"rows: shares memory with keys"});
  check_invalid(check_apart("rows", c, "keys", a), {"rows: shares memory with keys"});
  CHECK(check_apart("rows", a, "keys", *other.check()).ok());
  CHECK(check_apart("rows", a, "keys", rows(1, 0)).ok());  // nothing lies nowhere

  keys.strides = {24, -8, 1};  // rows 4, 3, 2: reaches in front of its origin
  const TensorView backwards = rows(4, 3);
  check_invalid(check_apart("rows", backwards, "keys", c), {"shares memory"});
  CHECK(check_apart("rows", backwards, "keys",
                    [&] {
                      keys.strides = {24, 8, 1};
                      return rows(0, 2);
                    }())
            .ok());
}

TEST_CASE("tensor: K and V halves of common rows are apart, as long as neither enters the other") {
  // [2, 3] rows of 16 floats: K in the first kd, V in the next vd.
  std::vector<float> rows(2 * 3 * 16);
  const auto part = [&rows](int64_t first, int64_t width, int64_t token_stride = 16) {
    SampleKeys keys;
    keys.tensor.data = rows.data() + first;
    keys.shape = {2, token_stride > 0 ? 3 : 2, width};
    keys.strides = {48, token_stride, 1};
    return *keys.check();
  };
  CHECK(check_apart("k", part(0, 8), "v", part(8, 8)).ok());
  CHECK(check_apart("v", part(8, 8), "k", part(0, 8)).ok());
  CHECK(check_apart("k", part(0, 1), "v", part(1, 15)).ok());
  check_invalid(check_apart("k", part(0, 9), "v", part(8, 8)), {"k: shares memory with v"});
  check_invalid(check_apart("v", part(8, 8), "k", part(0, 9)), {"v: shares memory with k"});
  check_invalid(check_apart("k", part(4, 12), "v", part(1, 4)), {"shares memory"});
  // V runs backwards through the same rows, then forwards with an odd stride that meets K.
  CHECK(check_apart("k", part(0, 8), "v", part(32 + 8, 8, -16)).ok());
  check_invalid(check_apart("k", part(0, 8), "v", part(8, 8, 12)), {"shares memory"});
}

TEST_CASE("tensor: apart or not does not hang on strides without a step, or on their sign") {
  std::vector<float> rows(3 * 24);
  const auto part = [&rows](int64_t first, std::array<int64_t, 3> shape,
                            std::array<int64_t, 3> strides) {
    SampleKeys keys;
    keys.tensor.data = rows.data() + first;
    keys.shape = shape;
    keys.strides = strides;
    return *keys.check();
  };
  // One run each.
  const TensorView run = part(0, {1, 1, 8}, {8, 8, 1});
  check_invalid(check_apart("a", run, "b", run), {"a: shares memory with b"});
  check_invalid(check_apart("a", run, "b", part(7, {1, 1, 8}, {8, 8, 1})), {"shares memory"});
  CHECK(check_apart("a", run, "b", part(8, {1, 1, 8}, {8, 8, 1})).ok());
  // Rows of 24 floats, halves of 12: the stride of the one head is never used.
  const TensorView k = part(0, {1, 3, 12}, {7, 24, 1});
  CHECK(check_apart("k", k, "v", part(12, {1, 3, 12}, {5, 24, 1})).ok());
  CHECK(check_apart("k", k, "v", part(48 + 12, {1, 3, 12}, {5, -24, 1})).ok());
  check_invalid(check_apart("k", k, "v", part(48 + 11, {1, 3, 12}, {5, -24, 1})),
                {"shares memory"});
}

}  // namespace
}  // namespace pkv
