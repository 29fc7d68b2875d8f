// Axes of the report's plots: scales, ticks, and numbers as a person writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pkv::cli {

enum class Scale {
  kLinear,  // from 0 or from the data
  kLog,     // ticks at 1, 2, 5 or at powers of ten; values above 0
  kPowers   // ticks at powers of two
};
enum class Unit {
  kNumber,
  kCount,   // 16,384
  kTokens,  // 16K, of 1,024
  kBytes,
  kMicroseconds,
  kGbPerS
};

// Of a letter of the page's small print, at most; in pixels.
inline constexpr double kLetter = 7.2;

// Three digits that matter, as a tick has them: "1.5 KiB", "1.25 ms".
std::string number_text(double value, Unit unit);
// Four of them, for tables and tips.
std::string exact_text(double value, Unit unit);

// What is put into a page: & < > " ' become entities.
std::string escaped(std::string_view text);

class AxisScale {
 public:
  // Holds `low..high`, with some room; at most `most` ticks.
  AxisScale(Scale scale, double low, double high, int most);
  // 0..1 of the axis.
  double at(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  double mapped(double value) const;

  Scale scale_;
  double from_ = 0;  // mapped
  double to_ = 1;
  std::vector<double> ticks_;
};

}  // namespace pkv::cli
