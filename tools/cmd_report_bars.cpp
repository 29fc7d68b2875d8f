#include "tools/cmd_report_bars.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fmt/format.h"
#include "tools/cmd_report_svg.h"

namespace pkv::cli {
namespace {

constexpr double kWide = 580;
constexpr double kNarrow = 330;
constexpr double kPale = 0.5;  // shares below are dark, and have pale numbers

// Begins and ends of texts: at most `most` letters, a few less where that would cut one in two.
bool is_inside_letter(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string end_of(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t begin = text.size() - most + 2;
  while (begin < text.size() && is_inside_letter(text[begin])) ++begin;
  return ".." + text.substr(begin);
}

std::string begin_of(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most - 2;
  while (end > 0 && is_inside_letter(text[end])) --end;
  return text.substr(0, end) + "..";
}

// A label above each bar, so that it may be as long as the plot is wide.
std::string bars_svg(const BarChart& chart, bool is_narrow) {
  const double width = is_narrow ? kNarrow : kWide;
  const double room = is_narrow ? 70 : 84;  // for the figure behind a bar
  constexpr double kPitch = 33;
  constexpr double kThick = 12;
  double most = 0;
  for (const Bar& bar : chart.bars) {
    double sum = 0;
    for (const BarPart& part : bar.parts) sum += part.value;
    most = std::max(most, sum);
  }
  const double scale = most > 0 ? (width - room - 4) / most : 0;
  std::string out = svg_open(is_narrow ? "narrow" : "wide", chart.title, width,
                             kPitch * static_cast<double>(chart.bars.size()) + 4);
  double y = 0;
  for (const Bar& bar : chart.bars) {
    double x = 2;
    double sum = 0;
    const auto letters = static_cast<size_t>((width - 4) / kLetter) - bar.note.size();
    out += fmt::format("<text class=\"label\" x=\"2\" y=\"{:.1f}\">{}{}<title>{}</title></text>",
                       y + 12, escaped(begin_of(bar.label, letters)), escaped(bar.note),
                       escaped(bar.label));
    for (const BarPart& part : bar.parts) {
      const double wide = std::max(part.value * scale, part.value > 0 ? 1.5 : 0);
      out += fmt::format(
          "<rect class=\"bar {}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\">"
          "<title>{}: {} {}</title></rect>",
          style_class(part.style), bar.side == 1 ? " other" : "", x, y + 17, wide, kThick,
          escaped(bar.label), escaped(part.name), exact_text(part.value, chart.unit));
      x += wide;
      sum += part.value;
    }
    out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + 6, y + 27,
                       number_text(sum, chart.unit));
    y += kPitch;
  }
  return out + "</svg>";
}

std::string bars_legend(const BarChart& chart) {
  std::vector<std::string> names;
  std::string out;
  for (const Bar& bar : chart.bars) {
    for (const BarPart& part : bar.parts) {
      if (part.name.empty() || std::find(names.begin(), names.end(), part.name) != names.end()) {
        continue;
      }
      names.push_back(part.name);
      out += fmt::format(
          "<li><svg class=\"key\" viewBox=\"0 0 26 12\" aria-hidden=\"true\"><rect "
          "class=\"bar {}\" x=\"3\" y=\"1\" width=\"20\" height=\"10\"/></svg>{}"
          "</li>",
          style_class(part.style), escaped(part.name));
    }
  }
  return out.empty() ? "" : "<ul class=\"legend\">" + out + "</ul>";
}

struct Colour {
  double red, green, blue;
};

// The colour map cividis, which people without red or green see alike: five of its colours, the
// others between them.
Colour heat_colour(double share) {
  constexpr std::array<Colour, 5> kStops = {
      Colour{0, 34, 78}, {65, 77, 107}, {124, 123, 120}, {188, 175, 111}, {254, 232, 56}};
  const double at = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const auto first = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const double part = at - static_cast<double>(first);
  const Colour& a = kStops[first];
  const Colour& b = kStops[first + 1];
  return {a.red + (b.red - a.red) * part, a.green + (b.green - a.green) * part,
          a.blue + (b.blue - a.blue) * part};
}

std::string rgb(double share) {
  const Colour colour = heat_colour(share);
  return fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(std::lround(colour.red)),
                     static_cast<int>(std::lround(colour.green)),
                     static_cast<int>(std::lround(colour.blue)));
}

std::string heat_svg(const HeatMap& map, bool is_narrow) {
  const double width = is_narrow ? kNarrow : kWide;
  size_t longest = 0;
  for (const auto& row : map.rows) longest = std::max(longest, row.label.size());
  const double left = std::clamp(kLetter * static_cast<double>(longest) + 8, 40.0, width * 0.45);
  const double cell = std::min((width - left - 4) / static_cast<double>(map.columns.size()), 84.0);
  const double tall = map.rows.size() > 24 ? 16 : 26;
  const double top = 38;
  const double bottom = top + tall * static_cast<double>(map.rows.size());
  std::string out = svg_open(is_narrow ? "narrow" : "wide", map.title, width, bottom + 44);
  out += fmt::format("<text class=\"title\" x=\"{:.1f}\" y=\"14\">{}</text>", left,
                     escaped(map.columns_title));
  // As many names of columns as there is room for.
  size_t widest = 1;
  for (const auto& name : map.columns) widest = std::max(widest, name.size());
  const auto every = static_cast<size_t>(
      std::max(1.0, std::ceil((kLetter * static_cast<double>(widest) + 4) / cell)));
  for (size_t i = 0; i < map.columns.size(); i += every) {
    out += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"31\" text-anchor=\"middle\">{}"
        "</text>",
        left + cell * (static_cast<double>(i) + 0.5), escaped(map.columns[i]));
  }
  const auto most_letters = static_cast<size_t>((left - 8) / kLetter);
  double y = top;
  for (const auto& row : map.rows) {
    const std::string label = end_of(row.label, most_letters);
    out += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
        "<title>{}</title></text>",
        left - 6, y + tall / 2 + 4, escaped(label), escaped(row.label));
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (!row.cells[i]) continue;
      const double x = left + cell * static_cast<double>(i);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"{}\"><title>{}, {}: {:.3f}</title></rect>",
          x, y, cell - 1, tall - 1, rgb(*row.cells[i]), escaped(row.label), escaped(map.columns[i]),
          *row.cells[i]);
      if (cell < 34 || tall < 20) continue;
      out += fmt::format("<text class=\"cell{}\" x=\"{:.1f}\" y=\"{:.1f}\">{:.2f}</text>",
                         *row.cells[i] < kPale ? " pale" : "", x + (cell - 1) / 2, y + tall / 2 + 4,
                         *row.cells[i]);
    }
    y += tall;
  }
  // The scale.
  constexpr int kSteps = 20;
  const double step = std::min(9.0, (width - left - 50) / kSteps);
  for (int i = 0; i < kSteps; ++i) {
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"10\" fill=\"{}\""
        "/>",
        left + step * i, bottom + 10, step + 0.5, rgb((i + 0.5) / kSteps));
  }
  out += fmt::format(
      "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">0</text><text class=\"tick\" "
      "x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">1</text>",
      left, bottom + 34, left + step * kSteps, bottom + 34);
  return out + "</svg>";
}

}  // namespace

std::string bars_figure(const BarChart& chart) {
  return figure_html(chart.title, chart.about, bars_svg(chart, false), bars_svg(chart, true),
                     bars_legend(chart));
}

std::string heat_figure(const HeatMap& map) {
  return figure_html(map.title, map.about, heat_svg(map, false), heat_svg(map, true), "");
}

}  // namespace pkv::cli
