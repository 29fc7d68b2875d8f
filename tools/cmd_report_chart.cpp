#include "tools/cmd_report_chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "tools/cmd_report_svg.h"

namespace pkv::cli {
namespace {

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

class Drawing {
 public:
  Drawing(const Chart& chart, bool is_narrow)
      : chart_(chart),
        is_narrow_(is_narrow),
        width_(is_narrow ? 330 : 580),
        height_(is_narrow ? 290 : 380),
        x_(scale_of(chart.x, true, is_narrow ? 4 : 7)),
        y_(scale_of(chart.y, false, 6)) {
    size_t longest = 0;
    for (const double tick : y_.ticks()) {
      longest = std::max(longest, number_text(tick, chart.y.unit).size());
    }
    left_ = std::max(34.0, kLetter * static_cast<double>(longest) + 8);
  }

  std::string svg() {
    out_ = svg_open(is_narrow_ ? "narrow" : "wide", chart_.title, width_, height_);
    draw_axes();
    for (const ChartSeries& bound : chart_.bounds) draw_line(bound, "bound");
    for (const ChartLevel& level : chart_.levels) draw_level(level);
    for (const ChartSeries& series : chart_.series) draw_ranges(series);
    for (const ChartSeries& series : chart_.series) {
      draw_line(series, "line " + style_class(series.style) + (series.side == 1 ? " other" : "") +
                            (series.is_strong ? " strong" : ""));
    }
    // Those of ours last, so that nothing hides them.
    for (const bool is_strong : {false, true}) {
      for (const ChartSeries& series : chart_.series) {
        if (series.is_strong == is_strong) draw_points(series);
      }
    }
    take_lines();
    if (!is_narrow_) draw_names();
    draw_level_names();
    return out_ + "</svg>";
  }

 private:
  static constexpr double kRight = 24, kTop = 30, kBottom = 42;

  AxisScale scale_of(const ChartAxis& axis, bool is_x, int most) const {
    double low = axis.from.value_or(INFINITY);
    double high = axis.to.value_or(-INFINITY);
    const auto take = [&](double value) {
      if (axis.scale != Scale::kLinear && value <= 0) return;
      low = std::min(low, value);
      high = std::max(high, value);
    };
    for (const auto* list : {&chart_.series, &chart_.bounds}) {
      for (const ChartSeries& series : *list) {
        for (const ChartPoint& point : series.points) {
          take(is_x ? point.x : point.y);
          if (!is_x) take(point.low.value_or(point.y));
          if (!is_x) take(point.high.value_or(point.y));
        }
      }
    }
    for (const ChartLevel& level : chart_.levels) {
      if (level.is_upright == is_x) take(level.at);
    }
    if (low > high) low = high = 1;
    return {axis.scale, low, high, most};
  }

  double px(double x) const { return left_ + x_.at(x) * (width_ - left_ - kRight); }
  double py(double y) const { return kTop + (1 - y_.at(y)) * (height_ - kTop - kBottom); }

  void draw_axes() {
    const double bottom = height_ - kBottom;
    for (const double tick : y_.ticks()) {
      out_ += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", left_, py(tick),
                          width_ - kRight);
      out_ += fmt::format(
          "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
          "</text>",
          left_ - 6, py(tick) + 4, number_text(tick, chart_.y.unit));
    }
    for (const double tick : x_.ticks()) {
      out_ +=
          fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", px(tick), kTop, bottom);
      out_ += fmt::format(
          "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">"
          "{}</text>",
          px(tick), bottom + 16, number_text(tick, chart_.x.unit));
    }
    out_ += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", left_, bottom,
                        width_ - kRight);
    out_ +=
        fmt::format("<text class=\"title\" x=\"4\" y=\"14\">{}</text>", escaped(chart_.y.title));
    out_ += fmt::format(
        "<text class=\"title\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
        "</text>",
        width_ - kRight, height_ - 6, escaped(chart_.x.title));
  }

  void draw_line(const ChartSeries& series, const std::string& css_class) {
    std::string path;
    for (const ChartPoint& point : series.points) {
      if (!point.is_on_line) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(point.x), py(point.y));
    }
    // One point alone: a dash where a bound is, nothing where a marker shows it.
    if (path.find('L') == std::string::npos) {
      if (css_class != "bound" || series.points.empty()) return;
      path = fmt::format("M{:.1f} {:.1f}h30", px(series.points.front().x) - 15,
                         py(series.points.front().y));
    }
    out_ += fmt::format("<path class=\"{}\" d=\"{}\"><title>{}</title></path>", css_class, path,
                        escaped(series.name));
  }

  void draw_level(const ChartLevel& level) {
    out_ += level.is_upright ? fmt::format("<path class=\"bound\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>",
                                           px(level.at), kTop, height_ - kBottom)
                             : fmt::format("<path class=\"bound\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>",
                                           left_, py(level.at), width_ - kRight);
  }

  void draw_ranges(const ChartSeries& series) {
    for (const ChartPoint& point : series.points) {
      if (!point.low || !point.high || !point.is_on_line) continue;
      out_ += fmt::format("<path class=\"range {}\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>",
                          style_class(series.style), px(point.x), py(*point.low), py(*point.high));
    }
  }

  void draw_points(const ChartSeries& series) {
    const double radius = (series.is_strong ? 5.0 : 4.0) * (is_narrow_ ? 0.85 : 1);
    for (const ChartPoint& point : series.points) {
      const double x = px(point.x);
      const double y = py(point.y);
      out_ += fmt::format("<path class=\"point {}{}{}\" d=\"{}\"><title>{}</title></path>",
                          style_class(series.style), series.side == 1 ? " other" : "",
                          point.is_on_line ? "" : " faint",
                          marker_path(series.style, x, y, point.is_on_line ? radius : radius * .75),
                          escaped(point.tip));
      if (point.is_on_line) taken_.push_back({x - 4, y - 4, x + 4, y + 4});
    }
  }

  static double text_width(const std::string& text) {
    constexpr double kBold = 1.1;
    return kBold * kLetter * static_cast<double>(text.size());
  }

  // Small boxes along all lines, which names keep away from.
  void take_lines() {
    for (const ChartSeries& series : chart_.series) {
      const ChartPoint* last = nullptr;
      for (const ChartPoint& point : series.points) {
        if (!point.is_on_line) continue;
        if (last != nullptr) take_line(*last, point);
        last = &point;
      }
    }
  }

  void take_line(const ChartPoint& a, const ChartPoint& b) {
    const double dx = px(b.x) - px(a.x);
    const double dy = py(b.y) - py(a.y);
    const int steps = 1 + static_cast<int>(std::hypot(dx, dy) / 6);
    for (int i = 1; i < steps; ++i) {
      const double x = px(a.x) + dx * i / steps;
      const double y = py(a.y) + dy * i / steps;
      taken_.push_back({x - 1, y - 1, x + 1, y + 1});
    }
  }

  // Beside the last point of a line, or another one of it, wherever nothing is in the way. The
  // legend has all of them in any case.
  void draw_names() {
    constexpr size_t kLongest = 36;
    std::vector<const ChartSeries*> order;
    for (const ChartSeries& series : chart_.series) {
      if (series.name.size() <= kLongest) order.push_back(&series);
    }
    std::stable_sort(order.begin(), order.end(), [](const ChartSeries* a, const ChartSeries* b) {
      return a->is_strong > b->is_strong;
    });
    for (const ChartSeries* series : order) {
      for (auto point = series->points.rbegin(); point != series->points.rend(); ++point) {
        if (point->is_on_line && draw_name_beside(*series, *point)) break;
      }
    }
  }

  bool draw_name_beside(const ChartSeries& series, const ChartPoint& point) {
    const double x = px(point.x);
    const double y = py(point.y);
    const double wide = text_width(series.name);
    const std::pair<double, double> corners[] = {
        {x + 8, y - 7},  {x - wide / 2, y - 20}, {x - wide / 2, y + 7},  {x - wide - 8, y - 7},
        {x + 6, y - 19}, {x + 6, y + 5},         {x - wide - 4, y - 20}, {x - wide - 4, y + 6}};
    return std::any_of(std::begin(corners), std::end(corners), [&](const auto& corner) {
      return draw_name(series.name, style_class(series.style), corner.first, corner.second);
    });
  }

  // Along the line, below or above it; the legend has it in any case.
  void draw_level_names() {
    for (const ChartLevel& level : chart_.levels) {
      const double wide = text_width(level.name);
      bool is_drawn = false;
      for (double share = 0; share <= 1 && !is_drawn; share += 0.05) {
        if (level.is_upright) {
          const double top = kTop + share * (height_ - kTop - kBottom - 14);
          is_drawn = draw_name(level.name, "", px(level.at) - wide - 4, top) ||
                     draw_name(level.name, "", px(level.at) + 4, top);
        } else {
          const double left = left_ + 4 + share * (width_ - kRight - left_ - wide - 8);
          is_drawn = draw_name(level.name, "", left, py(level.at) - 16) ||
                     draw_name(level.name, "", left, py(level.at) + 2);
        }
      }
    }
  }

  // If there is room for it.
  bool draw_name(const std::string& name, const std::string& css_class, double left, double top) {
    const Box box = {left, top, left + text_width(name), top + 14};
    const bool is_inside = box.left > left_ && box.right < width_ && box.top > kTop - 12 &&
                           box.bottom < height_ - kBottom;
    if (!is_inside || std::any_of(taken_.begin(), taken_.end(),
                                  [&](const Box& other) { return box.overlaps(other); })) {
      return false;
    }
    taken_.push_back(box);
    out_ += fmt::format("<text class=\"name halo {}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>",
                        css_class, left, top + 11, escaped(name));
    return true;
  }

  const Chart& chart_;
  bool is_narrow_;
  double width_;
  double left_ = 0;  // of the plot: what the numbers beside it need
  double height_;
  AxisScale x_;
  AxisScale y_;
  std::vector<Box> taken_;  // by names and points
  std::string out_;
};

std::string legend_of(const Chart& chart) {
  std::string out = "<ul class=\"legend\">";
  for (const ChartSeries& series : chart.series) {
    out += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path class=\"line {0}"
        "{1}\" d=\"M1 6H25\"/><path class=\"point {0}{1}\" d=\"{2}\"/></svg>{3}</li>",
        style_class(series.style), series.side == 1 ? " other" : "",
        marker_path(series.style, 13, 6, 4.5), escaped(series.name));
  }
  for (const ChartLevel& level : chart.levels) {
    out += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path "
        "class=\"bound\" d=\"{}\"/></svg>{}</li>",
        level.is_upright ? "M13 0V12" : "M1 6H25", escaped(level.name));
  }
  for (const ChartSeries& bound : chart.bounds) {
    if (bound.points.empty()) continue;
    out += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path "
        "class=\"bound\" d=\"M1 6H25\"/></svg>{}</li>",
        escaped(bound.name));
  }
  return out + "</ul>";
}

}  // namespace

std::string chart_figure(const Chart& chart) {
  return figure_html(chart.title, chart.about, Drawing(chart, false).svg(),
                     Drawing(chart, true).svg(), legend_of(chart));
}

}  // namespace pkv::cli
