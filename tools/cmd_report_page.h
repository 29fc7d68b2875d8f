// The page of `pariskv report`: one HTML file that loads nothing.
#pragma once

#include <optional>
#include <string>

#include "tools/cmd_report_data.h"

namespace pkv::cli {

std::string report_page(const ReportData& data, const std::string& title,
                        std::optional<double> roof);

// What the page shows, as JSON: sources, means, lines of speed, differences.
std::string report_json(const ReportData& data, const std::string& title);

}  // namespace pkv::cli
