#include "tools/element.h"

#include <bit>
#include <cstring>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace pkv::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold little-endian numbers");

template <class T>
T load(const void* source, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(source) + i * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

// binary16 to binary32. The magnitude's bits, moved to their place in binary32, are the number
// times 2^-112; the product is exact, subnormals included. All exponent bits set: infinity or NaN.
float half_to_float(uint16_t half) {
  constexpr uint32_t kExponent = 0x7f800000;
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t magnitude = uint32_t{half & 0x7fffU} << 13;
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  if (magnitude >= (0x7c00U << 13)) bits = kExponent | magnitude;
  return std::bit_cast<float>(sign | bits);
}

float bfloat_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace

const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kF64: return "f64";
    case ElementType::kF16: return "f16";
    case ElementType::kBf16: return "bf16";
    case ElementType::kU8: return "u8";
    case ElementType::kI32: return "i32";
    case ElementType::kI64: return "i64";
    case ElementType::kOther: break;
  }
  return "another type";
}

int64_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kF64:
    case ElementType::kI64: return 8;
    case ElementType::kF32:
    case ElementType::kI32: return 4;
    case ElementType::kF16:
    case ElementType::kBf16: return 2;
    case ElementType::kU8: return 1;
    case ElementType::kOther: break;
  }
  return 0;
}

pkv_dtype float_dtype(ElementType type) {
  switch (type) {
    case ElementType::kF32:
    case ElementType::kF64:
    case ElementType::kU8: return PKV_DTYPE_F32;
    case ElementType::kF16: return PKV_DTYPE_F16;
    case ElementType::kBf16: return PKV_DTYPE_BF16;
    default: return 0;
  }
}

int64_t dtype_bytes(pkv_dtype dtype) { return dtype == PKV_DTYPE_F32 ? 4 : 2; }

void convert_elements(ElementType type, const void* source, int64_t count, void* target) {
  auto* floats = static_cast<float*>(target);
  if (type == ElementType::kF64) {
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(load<double>(source, i));
  } else if (type == ElementType::kU8) {
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(load<uint8_t>(source, i));
  } else if (count > 0) {
    std::memcpy(target, source, static_cast<size_t>(count * element_bytes(type)));
  }
}

void to_float(pkv_dtype dtype, const void* source, int64_t count, float* target) {
  if (dtype == PKV_DTYPE_F16) {
    for (int64_t i = 0; i < count; ++i) target[i] = half_to_float(load<uint16_t>(source, i));
  } else if (dtype == PKV_DTYPE_BF16) {
    for (int64_t i = 0; i < count; ++i) target[i] = bfloat_to_float(load<uint16_t>(source, i));
  } else if (count > 0) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
  }
}

int64_t checked_product(std::span<const int64_t> extents, int64_t unit) {
  int64_t product = unit;
  for (const int64_t extent : extents) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return -1;
  }
  return product;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace pkv::cli
