// Structs of callers that were built with another version of the headers: what they do not have is
// not written, and takes its default when read. The size is the caller's struct_size.
//  - Sizes 4 .. 65,536 are accepted; others are INVALID_ARGUMENT.
//  - _init writes exactly that many bytes: the defaults, then zeros.
//  - A field counts when all of it lies within the size, rounded down to the struct's alignment
//    (the sizes that a header can have are multiples of it).
//  - Bytes behind the struct we know must be zero: they would be options of a later version, and an
//    option that is not used is an error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pkv {

inline constexpr size_t kMinStructSize = 4;
inline constexpr size_t kMaxStructSize = 65536;

absl::Status check_struct_size(size_t struct_size, std::string_view name);
absl::Status check_unknown_bytes(const void* data, size_t known, size_t struct_size,
                                 std::string_view name);

// For _init: `defaults` (its struct_size is ignored) into a caller's struct of `struct_size` bytes.
template <class T>
absl::Status init_struct(T* target, size_t struct_size, T defaults, std::string_view name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  if (absl::Status status = check_struct_size(struct_size, name); !status.ok()) return status;
  defaults.struct_size = static_cast<uint32_t>(struct_size);
  const size_t known = std::min(struct_size, sizeof(T));
  std::memcpy(static_cast<void*>(target), &defaults, known);
  std::memset(reinterpret_cast<char*>(target) + known, 0, struct_size - known);
  return absl::OkStatus();
}

// For inputs: the caller's fields over `defaults`; struct_size becomes ours.
template <class T>
absl::StatusOr<T> read_struct(const T* source, T defaults, std::string_view name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  const size_t struct_size = source->struct_size;
  if (absl::Status status = check_struct_size(struct_size, name); !status.ok()) return status;
  if (absl::Status status = check_unknown_bytes(source, sizeof(T), struct_size, name);
      !status.ok()) {
    return status;
  }
  const size_t whole = std::min(struct_size, sizeof(T)) / alignof(T) * alignof(T);
  std::memcpy(static_cast<void*>(&defaults), source, whole);
  defaults.struct_size = sizeof(T);
  return defaults;
}

// For outputs: the fields of `source` that the caller's struct has; its struct_size stays.
template <class T>
absl::Status write_struct(T* target, T source, std::string_view name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  const size_t struct_size = target->struct_size;
  if (absl::Status status = check_struct_size(struct_size, name); !status.ok()) return status;
  source.struct_size = target->struct_size;
  std::memcpy(static_cast<void*>(target), &source, std::min(struct_size, sizeof(T)));
  return absl::OkStatus();
}

}  // namespace pkv
