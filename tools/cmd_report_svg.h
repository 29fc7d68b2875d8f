// Parts that all figures of the report are made of.
#pragma once

#include <cstddef>
#include <string>

namespace pkv::cli {

// The path of a point: its shape repeats what its colour says.
std::string marker_path(size_t style, double x, double y, double radius);
std::string style_class(size_t style);
std::string figure_html(const std::string& title, const std::string& about, const std::string& wide,
                        const std::string& narrow, const std::string& legend);
std::string svg_open(const std::string& css_class, const std::string& title, double width,
                     double height);

}  // namespace pkv::cli
