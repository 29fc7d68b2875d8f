#include "core/base/dtype.h"

#include <doctest/doctest.h>

namespace pkv {
namespace {

TEST_CASE("dtype: bytes and names of every element type") {
  CHECK(dtype_bytes(PKV_DTYPE_F32) == 4);
  CHECK(dtype_bytes(PKV_DTYPE_F16) == 2);
  CHECK(dtype_bytes(PKV_DTYPE_BF16) == 2);
  CHECK(dtype_bytes(PKV_DTYPE_U8) == 1);
  CHECK(dtype_bytes(PKV_DTYPE_I32) == 4);
  CHECK(dtype_bytes(PKV_DTYPE_I64) == 8);
  CHECK(dtype_name(PKV_DTYPE_F32) == "f32");
  CHECK(dtype_name(PKV_DTYPE_F16) == "f16");
  CHECK(dtype_name(PKV_DTYPE_BF16) == "bf16");
  CHECK(dtype_name(PKV_DTYPE_U8) == "u8");
  CHECK(dtype_name(PKV_DTYPE_I32) == "i32");
  CHECK(dtype_name(PKV_DTYPE_I64) == "i64");
}

TEST_CASE("dtype: a number that is none has no size and stays a number") {
  for (const pkv_dtype dtype : {0, 2, 8, -1}) {
    CHECK(dtype_bytes(dtype) == 0);
    CHECK(dtype_name(dtype) == std::to_string(dtype));
  }
}

TEST_CASE("dtype: names of the places of memory") {
  CHECK(device_type_name(PKV_DEVICE_CPU) == "cpu");
  CHECK(device_type_name(PKV_DEVICE_CUDA) == "cuda");
  CHECK(device_type_name(PKV_DEVICE_CUDA_HOST) == "cuda_host");
  CHECK(device_type_name(PKV_DEVICE_ROCM) == "rocm");
  CHECK(device_type_name(PKV_DEVICE_ROCM_HOST) == "rocm_host");
  CHECK(device_type_name(PKV_DEVICE_CUDA_MANAGED) == "cuda_managed");
  CHECK(device_type_name(4) == "4");
}

}  // namespace
}  // namespace pkv
