#include "core/base/checked.h"

#include <string>

#include "absl/status/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

absl::Status refuse(std::string_view what, std::string_view reason,
                    std::initializer_list<Named> sizes) {
  std::string text = str_cat(what, reason);
  for (const Named& size : sizes) text += str_cat(" ", size.name, "=", size.value);
  return absl::InvalidArgumentError(text);
}

bool has_negative(std::initializer_list<Named> sizes) {
  for (const Named& size : sizes) {
    if (size.value < 0) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<int64_t> checked_product(std::string_view what, std::initializer_list<Named> sizes) {
  if (has_negative(sizes)) return refuse(what, " negative:", sizes);
  // A zero anywhere makes the product 0, also where a part of it would not fit.
  for (const Named& size : sizes) {
    if (size.value == 0) return 0;
  }
  int64_t product = 1;
  for (const Named& size : sizes) {
    const std::optional<int64_t> next = checked_mul(product, size.value);
    if (!next) return refuse(what, " too large:", sizes);
    product = *next;
  }
  return product;
}

absl::StatusOr<int64_t> checked_sum(std::string_view what, std::initializer_list<Named> sizes) {
  if (has_negative(sizes)) return refuse(what, " negative:", sizes);
  int64_t sum = 0;
  for (const Named& size : sizes) {
    const std::optional<int64_t> next = checked_add(sum, size.value);
    if (!next) return refuse(what, " too large:", sizes);
    sum = *next;
  }
  return sum;
}

}  // namespace pkv
