#include "api/src/struct_size.h"

#include "core/base/text.h"

namespace pkv {

absl::Status check_struct_size(std::size_t struct_size, std::string_view name) {
  if (struct_size >= kMinStructSize && struct_size <= kMaxStructSize) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, ": struct_size=", struct_size,
                                            ", accepted: ", kMinStructSize, "..", kMaxStructSize));
}

absl::Status check_unknown_bytes(const void* data, std::size_t known, std::size_t struct_size,
                                 std::string_view name) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = known; i < struct_size; ++i) {
    if (bytes[i] != 0) {
      return absl::InvalidArgumentError(str_cat(name, ": byte ", i, " of ", struct_size,
                                                " is set, this library knows ", known,
                                                " and cannot obey what stands behind them"));
    }
  }
  return absl::OkStatus();
}

}  // namespace pkv
