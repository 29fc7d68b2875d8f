// Element types of tensors in files, and their conversion to what the library takes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pariskv/pariskv_types.h"

namespace pkv::cli {

enum class ElementType { kF32, kF64, kF16, kBf16, kU8, kI32, kI64, kOther };

const char* element_name(ElementType type);  // "f32"
int64_t element_bytes(ElementType type);     // 0 for kOther

// The dtype that elements get when they are read as keys, values or queries: f32, f16 and bf16 stay
// as they are, f64 is rounded to f32, u8 becomes f32; 0: not accepted there.
pkv_dtype float_dtype(ElementType type);
inline constexpr std::string_view kAcceptedFloats = "f32, f16, bf16, f64, u8";
int64_t dtype_bytes(pkv_dtype dtype);

// `count` stored elements to float_dtype(type).
void convert_elements(ElementType type, const void* source, int64_t count, void* target);
// f32, f16 or bf16, exactly.
void to_float(pkv_dtype dtype, const void* source, int64_t count, float* target);

// Product of extents and `unit`; -1 if one is negative or the product passes 2^63 - 1.
int64_t checked_product(std::span<const int64_t> extents, int64_t unit);

std::string shape_text(std::span<const int64_t> shape);  // "[8, 1000, 128]"

}  // namespace pkv::cli
