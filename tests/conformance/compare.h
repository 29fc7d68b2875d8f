// Comparison of results, bit by bit or within a tolerance. What differs becomes the text of a
// Failure: where first, what was expected, what came, and the bits of both.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/session.h"
#include "tests/conformance/zone.h"

namespace pkv::conformance {

// Whether a NaN equals a NaN of other bits: rules say NaN, not which. Two runs have the same bits.
enum class Nans { kAnyEqual, kByBits };

// T: float, double, int32_t, int64_t, uint8_t. `what` names the array.
template <class T>
void expect_bits(const std::string& what, const std::vector<T>& expected, const std::vector<T>& got,
                 Nans nans = Nans::kAnyEqual);

template <class T>
void expect_bits(const std::string& what, const Rows<T>& expected, const Rows<T>& got,
                 Nans nans = Nans::kAnyEqual);

// Elements of any dtype; NaN payloads count.
void expect_bits(const std::string& what, const Dense& expected, const Dense& got,
                 Nans nans = Nans::kByBits);

// Names plane, entry and byte.
void expect_bits(const std::string& what, const Records& expected, const Records& got,
                 Nans nans = Nans::kByBits);
void expect_bits(const std::string& what, const Zone& expected, const Zone& got,
                 Nans nans = Nans::kByBits);

// |got - expected| <= tolerance; infinities of one sign agree, and so do two NaNs.
bool is_close(double expected, double got, double tolerance);

using Tolerance = std::function<double(size_t)>;  // of element i
template <class T>
void expect_close(const std::string& what, const std::vector<T>& expected,
                  const std::vector<T>& got, const Tolerance& tolerance);

// For results that list their arrays: Result::each(f, a, b) calls f(name, array of a, array of b).
template <class Result>
void expect_same(const Result& expected, const Result& got, const std::string& whose,
                 Nans nans = Nans::kByBits) {
  Result::each([&](const char* name, const auto& a,
                   const auto& b) { expect_bits(whose + ": " + name, a, b, nans); },
               expected, got);
}

}  // namespace pkv::conformance
