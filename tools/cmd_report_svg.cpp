#include "tools/cmd_report_svg.h"

#include <cmath>

#include "fmt/format.h"
#include "tools/cmd_report_axis.h"

namespace pkv::cli {
namespace {

// The first two colours are ours alone; with the shapes, 24 methods look different.
constexpr size_t kOurColours = 2;
constexpr size_t kColours = 8;
constexpr size_t kShapes = 8;

std::string polygon(double x, double y, double radius, int corners, double turn) {
  std::string path;
  for (int i = 0; i < corners; ++i) {
    const double angle = turn + 2 * 3.14159265358979 * i / corners;
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x + radius * std::cos(angle),
                        y + radius * std::sin(angle));
  }
  return path + "Z";
}

}  // namespace

std::string marker_path(size_t style, double x, double y, double radius) {
  constexpr double kUp = -3.14159265358979 / 2;
  switch (style % kShapes) {
    case 0: return polygon(x, y, radius, 16, 0);
    case 1: return polygon(x, y, radius * 1.2, 4, kUp / 2);
    case 2: return polygon(x, y, radius * 1.25, 3, kUp);
    case 3: return polygon(x, y, radius * 1.25, 4, kUp);
    case 4: return polygon(x, y, radius * 1.25, 3, -kUp);
    case 5: return polygon(x, y, radius * 1.1, 6, 0);
    case 6: return polygon(x, y, radius * 1.25, 3, 0);
    default: return polygon(x, y, radius * 1.15, 5, kUp);
  }
}

std::string style_class(size_t style) {
  if (style < kOurColours) return fmt::format("c{}", style);
  return fmt::format("c{}", kOurColours + (style - kOurColours) % (kColours - kOurColours));
}

std::string svg_open(const std::string& css_class, const std::string& title, double width,
                     double height) {
  return fmt::format("<svg class=\"plot {}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                     css_class, width, height, escaped(title));
}

std::string figure_html(const std::string& title, const std::string& about, const std::string& wide,
                        const std::string& narrow, const std::string& legend) {
  return fmt::format("<figure><figcaption><h3>{}</h3><p>{}</p></figcaption>{}{}{}</figure>\n",
                     escaped(title), escaped(about), wide, narrow, legend);
}

}  // namespace pkv::cli
