// Which views are refused, with which words.
#include "core/base/tensor.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/base/dtype.h"
#include "tests/unit/base/check_text.h"
#include "tests/unit/base/sample_keys.h"

namespace pkv {
namespace {

TEST_CASE("tensor: inputs may run backwards and repeat, outputs may not") {
  SampleKeys keys;
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
  SampleKeys keys;
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
  SampleKeys keys;
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
  SampleKeys keys;
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
  SampleKeys keys;
  for (const int32_t ndim : {0, 2, 4, -1}) {
    keys.tensor.ndim = ndim;
    check_invalid(keys.check().status(), {str_cat("keys: ndim=", ndim, ", accepted: 3 [h, t, d]")});
  }
}

TEST_CASE("tensor: dtypes outside the set are refused by name, unknown ones by number") {
  SampleKeys keys;
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
  const SampleKeys keys;
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
  SampleKeys keys;
  keys.shape = {1, -3, 8};
  check_invalid(keys.check().status(), {"keys: axis 1 (t) has extent -3, accepted: >= 0"});
  const absl::Status status =
      TensorView::check("keys", &keys.tensor,
                        {at_least("h", -9), at_least("t", -9), at_least("d", -9)}, kF32)
          .status();
  check_invalid(status, {"extent -3"});
}

TEST_CASE("tensor: strides of an empty tensor are not looked at") {
  SampleKeys keys;
  keys.shape = {2, 0, 8};
  for (const auto& strides : {std::array<int64_t, 3>{0, 0, 0}, {-8, 5, 7}, {1, 1, INT64_MIN}}) {
    std::copy(strides.begin(), strides.end(), keys.strides.begin());
    for (const Access access : {Access::kInput, Access::kOutput}) {
      const auto view = keys.check(access);
      REQUIRE(view.ok());
      CHECK(view->is_empty());
      CHECK(view->stride(2) == 1);
    }
  }
}

TEST_CASE("tensor: products of extents that pass 2^63 bytes are refused, with 0 strides too") {
  SampleKeys keys;
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
  keys.shape = {0, int64_t{1} << 40, int64_t{1} << 40};
  const absl::StatusOr<TensorView> empty = keys.check();
  REQUIRE(empty.ok());
  CHECK(empty->stride(0) == 1);
}

TEST_CASE("tensor: elements beyond the address space are refused on both sides") {
  SampleKeys keys;
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
  SampleKeys keys;
  keys.tensor.byte_offset = 2;
  check_invalid(keys.check().status(),
                {"keys: data + byte_offset=0x", "accepted: a multiple of 4 for f32"});
  keys.tensor.data = reinterpret_cast<char*>(keys.memory.data()) + 2;
  CHECK(keys.check().ok());
}

}  // namespace
}  // namespace pkv
