// Views of tensors: every refusal with its words, and what a checked view knows.
#include "core/base/tensor.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/dtype.h"
#include "tests/unit/base/check_text.h"

namespace pkv {
namespace {

constexpr pkv_dtype kF32[] = {PKV_DTYPE_F32};

// Keys [h, t, d] of one head, 3 tokens, 8 coordinates, in memory of its own.
struct Keys {
  std::vector<float> memory = std::vector<float>(64);
  std::array<int64_t, 3> shape = {1, 3, 8};
  std::array<int64_t, 3> strides = {24, 8, 1};
  pkv_tensor tensor{};

  Keys() {
    tensor.data = memory.data();
    tensor.device_type = PKV_DEVICE_CPU;
    tensor.ndim = 3;
    tensor.dtype = PKV_DTYPE_F32;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  absl::StatusOr<TensorView> check(Access access = Access::kInput) const {
    return TensorView::check("keys", &tensor,
                             {at_least("h", 0), at_least("t", 0), at_least("d", 0)}, kF32, access);
  }
};

TEST_CASE("tensor: a dense view knows its shape, strides, bytes and offsets") {
  const Keys keys;
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
  Keys keys;
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
  Keys keys;
  keys.tensor.byte_offset = 16;
  const absl::StatusOr<TensorView> view = keys.check();
  REQUIRE(view.ok());
  CHECK(view->origin() == keys.memory.data() + 4);
  CHECK(view->byte_span().end == 96);  // counted from the origin
}

TEST_CASE("tensor: inputs may run backwards and repeat, outputs may not") {
  Keys keys;
  keys.tensor.byte_offset = 16 * 4;
  keys.strides = {24, -8, 1};
  const absl::StatusOr<TensorView> backwards = keys.check();
  REQUIRE(backwards.ok());
  CHECK(backwards->byte_span().begin == -64);
  CHECK(backwards->byte_span().end == 32);
  CHECK(backwards->element_offset(0, 2, 1) == -15);
  CHECK_FALSE(backwards->is_dense());
  check_invalid(keys.check(Access::kOutput).status(),
                {"keys: stride of axis 1=-8, accepted: >= 1", "overlap"});

  keys.strides = {24, 0, 1};
  const absl::StatusOr<TensorView> repeated = keys.check();
  REQUIRE(repeated.ok());
  CHECK(repeated->byte_span().end == 32);
  check_invalid(keys.check(Access::kOutput).status(), {"keys: stride of axis 1=0, accepted: >= 1"});
}

TEST_CASE("tensor: rows of an output step over the rows within") {
  Keys keys;
  keys.shape = {2, 3, 8};
  keys.strides = {8, 16, 1};  // heads side by side within a token
  CHECK(keys.check(Access::kOutput).ok());
  keys.strides = {8, 15, 1};
  check_invalid(keys.check(Access::kOutput).status(),
                {"keys: stride of axis 1=15, accepted: >= 16"});
  keys.strides = {7, 16, 1};
  check_invalid(keys.check(Access::kOutput).status(), {"keys: stride of axis 0=7, accepted: >= 8"});
  // The stride of an axis with one element is never used.
  keys.shape = {1, 3, 8};
  keys.strides = {-5, 8, 1};
  CHECK(keys.check(Access::kOutput).ok());
  CHECK(keys.check(Access::kOutput)->is_dense());
}

TEST_CASE("tensor: the last axis is contiguous, unless it has one element") {
  Keys keys;
  keys.strides = {24, 8, 2};
  check_invalid(keys.check().status(),
                {"keys: stride of the last axis=2, accepted: 1 (contiguous)"});
  keys.strides = {24, 8, -1};
  check_invalid(keys.check().status(), {"keys: stride of the last axis=-1, accepted: 1"});
  keys.shape = {1, 3, 1};
  keys.strides = {24, 8, 7};
  CHECK(keys.check().ok());
}

TEST_CASE("tensor: NULL tensors, shapes and data are refused, NULL data of nothing is not") {
  check_invalid(TensorView::check("keys", nullptr, {at_least("d", 0)}, kF32).status(),
                {"keys: tensor=NULL, accepted: a pointer"});
  Keys keys;
  keys.tensor.data = nullptr;
  check_invalid(keys.check().status(), {"keys: data=NULL, accepted:", "extent is 0"});
  keys.shape = {1, 0, 8};
  const absl::StatusOr<TensorView> empty = keys.check();
  REQUIRE(empty.ok());
  CHECK(empty->is_empty());
  CHECK(empty->is_dense());
  CHECK(empty->element_count() == 0);
  CHECK(empty->byte_span().end == 0);
  CHECK(empty->origin() == nullptr);
  CHECK(keys.check(Access::kOutput).ok());
  keys.tensor.shape = nullptr;
  check_invalid(keys.check().status(), {"keys: shape=NULL, accepted: a pointer to 3 extents"});
}

TEST_CASE("tensor: the number of axes is named with their letters") {
  Keys keys;
  for (const int32_t ndim : {0, 2, 4, -1}) {
    keys.tensor.ndim = ndim;
    check_invalid(keys.check().status(), {str_cat("keys: ndim=", ndim, ", accepted: 3 [h, t, d]")});
  }
}

TEST_CASE("tensor: dtypes outside the set are refused by name, unknown ones by number") {
  Keys keys;
  keys.tensor.dtype = PKV_DTYPE_U8;
  const auto check = [&keys](std::span<const pkv_dtype> dtypes) {
    return TensorView::check("keys", &keys.tensor,
                             {at_least("h", 0), at_least("t", 0), at_least("d", 0)}, dtypes);
  };
  check_invalid(check(kFloatTypes).status(), {"keys: dtype=u8, accepted: f32, f16 or bf16"});
  keys.tensor.dtype = 77;
  check_invalid(check(kFloatTypes).status(), {"keys: dtype=77, accepted: f32, f16 or bf16"});
  constexpr pkv_dtype kWrong[] = {77};
  check_invalid(check(kWrong).status(), {"keys: dtype=77"});  // no size, so never accepted
  keys.tensor.dtype = PKV_DTYPE_BF16;
  REQUIRE(check(kFloatTypes).ok());
  CHECK(check(kFloatTypes)->byte_span().end == 48);
}

TEST_CASE("tensor: extents outside their range name axis, letter, value and range") {
  const Keys keys;
  const auto check = [&keys](Axis t, Axis d) {
    return TensorView::check("keys", &keys.tensor, {exactly("h", 1), t, d}, kF32).status();
  };
  CHECK(check(exactly("t", 3), between("d", 8, 576)).ok());
  CHECK(check(at_least("t", 3), between("d", 1, 8)).ok());
  check_invalid(check(exactly("t", 4), at_least("d", 0)),
                {"keys: axis 1 (t) has extent 3, accepted: 4"});
  check_invalid(check(at_least("t", 4), at_least("d", 0)),
                {"keys: axis 1 (t) has extent 3, accepted: >= 4"});
  check_invalid(check(at_least("t", 0), between("d", 9, 576)),
                {"keys: axis 2 (d) has extent 8, accepted: 9..576"});
  check_invalid(check(at_least("t", 0), between("d", 1, 7)),
                {"keys: axis 2 (d) has extent 8, accepted: 1..7"});
}

TEST_CASE("tensor: a negative extent is refused whatever the range") {
  Keys keys;
  keys.shape = {1, -3, 8};
  check_invalid(keys.check().status(), {"keys: axis 1 (t) has extent -3, accepted: >= 0"});
  const absl::Status status =
      TensorView::check("keys", &keys.tensor,
                        {at_least("h", -9), at_least("t", -9), at_least("d", -9)}, kF32)
          .status();
  check_invalid(status, {"extent -3"});
}

TEST_CASE("tensor: products of extents that pass 2^63 bytes are refused, with 0 strides too") {
  Keys keys;
  keys.shape = {int64_t{1} << 31, int64_t{1} << 30, 1};  // 2^61 elements, 2^63 bytes
  keys.strides = {0, 0, 1};
  check_invalid(keys.check().status(),
                {"keys: shape=[2147483648, 1073741824, 1] of f32", "2^63-1"});
  keys.shape = {int64_t{1} << 31, (int64_t{1} << 30) - 1, 1};
  CHECK(keys.check().ok());
  keys.shape = {int64_t{1} << 40, int64_t{1} << 40, 0};  // nothing, however large it looks
  CHECK(keys.check().ok());
  keys.tensor.strides = nullptr;
  CHECK(keys.check().ok());
}

TEST_CASE("tensor: elements beyond the address space are refused on both sides") {
  Keys keys;
  constexpr int64_t kHuge = INT64_MAX / 8;
  const auto refuses = [&keys](std::array<int64_t, 3> strides, uint64_t byte_offset) {
    keys.strides = strides;
    keys.tensor.byte_offset = byte_offset;
    check_invalid(keys.check().status(), {"keys: shape=[1, 3, 8] strides=[", "address space"});
  };
  refuses({1, INT64_MAX, 1}, 0);  // (t - 1) * stride
  refuses({1, INT64_MIN, 1}, 0);
  refuses({1, kHuge * 2, 1}, 0);  // times 4 bytes
  refuses({1, -kHuge, 1}, 0);     // in front of address 0
  refuses({24, 8, 1}, UINT64_MAX - 15);
  refuses({24, 8, 1}, ~uint64_t{0} - reinterpret_cast<uintptr_t>(keys.memory.data()) - 60);
  keys.shape = {3, 3, 8};
  keys.strides = {kHuge - 8, kHuge - 8, 1};  // each fits, the sum does not
  check_invalid(keys.check().status(), {"keys: shape=[3, 3, 8]", "address space"});
  // An output whose rows reach past int64 is disjoint, yet beyond memory.
  keys.strides = {INT64_MAX - 9, 8, 1};
  check_invalid(keys.check(Access::kOutput).status(), {"keys: shape=[3, 3, 8]", "address space"});
}

TEST_CASE("tensor: elements lie at multiples of their size") {
  Keys keys;
  keys.tensor.byte_offset = 2;
  check_invalid(keys.check().status(),
                {"keys: data + byte_offset=0x", "accepted: a multiple of 4 for f32"});
  keys.tensor.data = reinterpret_cast<char*>(keys.memory.data()) + 2;
  CHECK(keys.check().ok());
}

TEST_CASE("tensor: the C struct of a view describes the same elements") {
  Keys keys;
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
  Keys keys;
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
  Keys keys;
  Keys other;
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

}  // namespace
}  // namespace pkv
