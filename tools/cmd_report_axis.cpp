#include "tools/cmd_report_axis.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

// Without zeros at the end.
std::string trimmed(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// `digits` of them matter, no exponent.
std::string plain(double value, int digits) {
  if (value == 0) return "0";
  const int behind = digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
  return trimmed(fmt::format("{:.{}f}", value, std::clamp(behind, 0, 9)));
}

std::string scaled(double value, int digits, double step,
                   std::initializer_list<const char*> names) {
  auto name = names.begin();
  while (value >= step && name + 1 != names.end()) {
    value /= step;
    ++name;
  }
  return plain(value, digits) + *name;
}

std::string text_of(double value, Unit unit, int digits) {
  switch (unit) {
    case Unit::kNumber: return plain(value, digits);
    case Unit::kCount: return grouped(static_cast<int64_t>(std::llround(value)));
    case Unit::kBytes: return scaled(value, digits, 1024, {" B", " KiB", " MiB", " GiB"});
    case Unit::kTokens: return scaled(value, digits, 1024, {"", "K", "M"});
    case Unit::kMicroseconds: return scaled(value, digits, 1000, {" µs", " ms", " s"});
    case Unit::kGbPerS: return scaled(value, digits, 1000, {" GB/s", " TB/s"});
  }
  return "";
}

// The smallest of 1, 2, 5 times a power of ten that is not below.
double nice_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<double> decade_ticks(double low, double high, int most) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (const std::vector<double>& factors :
       {std::vector<double>{1, 2, 5}, std::vector<double>{1, 3}, std::vector<double>{1}}) {
    ticks.clear();
    for (int exponent = first; exponent <= last; ++exponent) {
      for (const double factor : factors) {
        const double tick = factor * std::pow(10, exponent);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    if (static_cast<int>(ticks.size()) <= most) break;
  }
  return ticks;
}

std::vector<double> evenly(double first, double last, double step) {
  std::vector<double> ticks;
  const auto count = static_cast<int>(std::floor((last - first) / step + 1e-6));
  for (int i = 0; i <= count; ++i) ticks.push_back(first + i * step);
  return ticks;
}

}  // namespace

std::string number_text(double value, Unit unit) { return text_of(value, unit, 3); }
std::string exact_text(double value, Unit unit) { return text_of(value, unit, 4); }

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

AxisScale::AxisScale(Scale scale, double low, double high, int most) : scale_(scale) {
  constexpr double kRoom = 0.04;  // of the axis, at both ends
  if (scale == Scale::kLinear) {
    if (high <= low) high = low + std::max(std::abs(low), 1.0);
    const double step = nice_step((high - low) / most);
    const double first = std::floor(low / step + 1e-9) * step;
    const double last = std::ceil(high / step - 1e-9) * step;
    ticks_ = evenly(first, last, step);
    from_ = first;
    to_ = last;
    return;
  }
  const double base = scale == Scale::kLog ? 10 : 2;
  from_ = std::log(low) / std::log(base);
  to_ = std::log(high) / std::log(base);
  const double room = std::max((to_ - from_) * kRoom, 0.1);
  from_ -= room;
  to_ += room;
  if (scale == Scale::kLog) {
    ticks_ = decade_ticks(std::pow(10, from_), std::pow(10, to_), most);
  } else {
    const double step = std::ceil((to_ - from_) / most);
    for (double tick = std::ceil(from_); tick <= to_; tick += step) {
      ticks_.push_back(std::pow(2, tick));
    }
  }
}

double AxisScale::mapped(double value) const {
  if (scale_ == Scale::kLinear) return value;
  return scale_ == Scale::kLog ? std::log10(value) : std::log2(value);
}

double AxisScale::at(double value) const {
  return std::clamp((mapped(value) - from_) / (to_ - from_), 0.0, 1.0);
}

}  // namespace pkv::cli
