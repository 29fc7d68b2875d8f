// The figures and tables of `pariskv report`, section by section, as pieces of a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/cmd_report_data.h"
#include "tools/cmd_report_means.h"

namespace pkv::cli {

struct ReportSection {
  std::string title;
  std::string figures;  // HTML
  std::string tables;   // HTML
};

ReportSection quality_section(const ReportData& data, Styles& styles);
ReportSection heads_section(const ReportData& data);
ReportSection drift_section(const ReportData& data, Styles& styles);
ReportSection memory_section(const ReportData& data, Styles& styles);
// `roof`: GB/s, where it is given.
ReportSection speed_section(const ReportData& data, std::optional<double> roof);
ReportSection difference_section(const std::vector<Difference>& differences);

// "A" and "B"; "" with one side only.
std::string side_mark(const ReportData& data, size_t side);

// A table behind a line that opens it; rows of plain texts. `columns` has an l or an r for each
// column, the side that it keeps to.
std::string table_html(const std::string& summary, const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& columns, bool is_open = false);

}  // namespace pkv::cli
