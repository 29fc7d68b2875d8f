#include "tests/conformance/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
auto bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<uint64_t>(value);
  } else {
    return value;
  }
}

template <class T>
bool is_equal(T expected, T got, Nans nans) {
  if (bits_of(expected) == bits_of(got)) return true;
  return nans == Nans::kAnyEqual && is_nan(expected) && is_nan(got);
}

// "12.5 (0x41480000)"; integers without bits.
template <class T>
std::string show(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return fmt::format("{:.9g} ({:#010x})", value, bits_of(value));
  } else if constexpr (std::is_same_v<T, double>) {
    return fmt::format("{:.17g} ({:#018x})", value, bits_of(value));
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return fmt::format("{:#04x}", value);
  } else {
    return fmt::format("{}", value);
  }
}

void expect_size(const std::string& what, size_t expected, size_t got) {
  if (expected == got) return;
  throw Failure(fmt::format("{}: {} elements expected, got {}", what, expected, got));
}

std::string show_element(const Dense& dense, int64_t i) {
  const int64_t size = dtype_bytes(dense.dtype);
  std::string bits = "0x";
  for (int64_t byte = size; byte-- > 0;) {
    bits += fmt::format("{:02x}", dense.bytes[static_cast<size_t>(i * size + byte)]);
  }
  const bool is_float =
      dense.dtype == PKV_DTYPE_F32 || dense.dtype == PKV_DTYPE_F16 || dense.dtype == PKV_DTYPE_BF16;
  return is_float ? fmt::format("{:.9g} ({})", dense.at(i), bits) : bits;
}

}  // namespace

template <class T>
void expect_bits(const std::string& what, const std::vector<T>& expected, const std::vector<T>& got,
                 Nans nans) {
  expect_size(what, expected.size(), got.size());
  size_t first = expected.size();
  int64_t different = 0;
  for (size_t i = expected.size(); i-- > 0;) {
    if (is_equal(expected[i], got[i], nans)) continue;
    first = i;
    ++different;
  }
  if (different == 0) return;
  throw Failure(fmt::format("{}: {} of {} differ, first [{}]: expected {}, got {}", what, different,
                            expected.size(), first, show(expected[first]), show(got[first])));
}

template <class T>
void expect_bits(const std::string& what, const Rows<T>& expected, const Rows<T>& got, Nans nans) {
  expect_size(what, expected.size(), got.size());
  for (size_t r = 0; r < expected.size(); ++r) {
    expect_bits(fmt::format("{} of row {}", what, r), expected[r], got[r], nans);
  }
}

void expect_bits(const std::string& what, const Dense& expected, const Dense& got, Nans nans) {
  expect_size(what, expected.bytes.size(), got.bytes.size());
  const int64_t size = dtype_bytes(expected.dtype);
  const auto count = static_cast<int64_t>(expected.bytes.size()) / size;
  for (int64_t i = 0; i < count; ++i) {
    if (std::equal(expected.bytes.begin() + i * size, expected.bytes.begin() + (i + 1) * size,
                   got.bytes.begin() + i * size)) {
      continue;
    }
    const bool is_float = size == 4 ? expected.dtype == PKV_DTYPE_F32 : size == 2;
    if (nans == Nans::kAnyEqual && is_float && is_nan(expected.at(i)) && is_nan(got.at(i))) {
      continue;
    }
    throw Failure(fmt::format("{}: row {}, element {} along the last axis: expected {}, got {}",
                              what, i / expected.shape.back(), i % expected.shape.back(),
                              show_element(expected, i), show_element(got, i)));
  }
}

void expect_bits(const std::string& what, const Records& expected, const Records& got,
                 Nans /*nans*/) {
  for (int p = 0; p < kPlanes; ++p) {
    const std::vector<uint8_t>& a = expected.planes[p];
    const std::vector<uint8_t>& b = got.planes[p];
    expect_size(what + ": " + kPlaneNames[p], a.size(), b.size());
    const auto first = std::mismatch(a.begin(), a.end(), b.begin());
    if (first.first == a.end()) continue;
    const auto byte = static_cast<size_t>(first.first - a.begin());
    const size_t per_entry = a.size() / static_cast<size_t>(expected.entries[p]);
    throw Failure(fmt::format("{}: plane {}: entry {}, byte {} of {}: expected {}, got {}", what,
                              kPlaneNames[p], byte / per_entry, byte % per_entry, per_entry,
                              show(a[byte]), show(b[byte])));
  }
}

void expect_bits(const std::string& what, const Zone& expected, const Zone& got, Nans nans) {
  expect_size(what, expected.rows.size(), got.rows.size());
  for (size_t r = 0; r < expected.rows.size(); ++r) {
    expect_bits(fmt::format("{}: row {}", what, r), expected.rows[r], got.rows[r], nans);
  }
  expect_bits(what + ": occupancy", expected.occupancy, got.occupancy, nans);
  expect_bits(what + ": value_sums", expected.value_sums, got.value_sums, nans);
  expect_bits(what + ": good_counts", expected.good_counts, got.good_counts, nans);
}

bool is_close(double expected, double got, double tolerance) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  return expected == got || std::fabs(got - expected) <= tolerance;
}

template <class T>
void expect_close(const std::string& what, const std::vector<T>& expected,
                  const std::vector<T>& got, const Tolerance& tolerance) {
  expect_size(what, expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto a = static_cast<double>(expected[i]);
    const auto b = static_cast<double>(got[i]);
    if (is_close(a, b, tolerance(i))) continue;
    throw Failure(fmt::format("{}: [{}]: expected {}, got {}, off by {:.3g}, tolerance {:.3g}",
                              what, i, show(expected[i]), show(got[i]), b - a, tolerance(i)));
  }
}

#define PKV_CONFORMANCE_BITS(T)                                                               \
  template void expect_bits(const std::string&, const std::vector<T>&, const std::vector<T>&, \
                            Nans);                                                            \
  template void expect_bits(const std::string&, const Rows<T>&, const Rows<T>&, Nans)
PKV_CONFORMANCE_BITS(float);
PKV_CONFORMANCE_BITS(double);
PKV_CONFORMANCE_BITS(int32_t);
PKV_CONFORMANCE_BITS(int64_t);
PKV_CONFORMANCE_BITS(uint8_t);
#undef PKV_CONFORMANCE_BITS

template void expect_close(const std::string&, const std::vector<float>&, const std::vector<float>&,
                           const Tolerance&);
template void expect_close(const std::string&, const std::vector<double>&,
                           const std::vector<double>&, const Tolerance&);

}  // namespace pkv::conformance
