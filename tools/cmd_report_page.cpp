#include "tools/cmd_report_page.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "pariskv/pariskv.h"
#include "tools/cmd_report_axis.h"
#include "tools/cmd_report_figures.h"
#include "tools/cmd_report_style.h"
#include "tools/json.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

bool has_two_sides(const ReportData& data) {
  return std::any_of(data.sources.begin(), data.sources.end(),
                     [](const ReportSource& source) { return source.side == 1; });
}

std::string source_html(const ReportData& data, const ReportSource& source) {
  std::string facts;
  const auto add = [&](const char* name, const std::string& text, const char* tag = "") {
    if (text.empty()) return;
    const std::string open = *tag == 0 ? "" : fmt::format("<{}>", tag);
    const std::string close = *tag == 0 ? "" : fmt::format("</{}>", tag);
    facts += fmt::format("<dt>{}</dt><dd>{}{}{}</dd>", name, open, escaped(text), close);
  };
  add("machine", source.device.empty() ? "not told" : source.device);
  add("date", source.date.empty() ? "not told" : source.date);
  add("command", source.command, "code");
  add("rows", std::to_string(source.rows));
  return fmt::format("<div class=\"source\"><h3>{}{}</h3><dl>{}</dl></div>\n",
                     side_mark(data, source.side), escaped(source.file), facts);
}

std::string section_html(const ReportSection& section, const std::string& id) {
  return fmt::format(
      "<section id=\"{}\"><h2>{}</h2><div class=\"figures\">\n{}</div>\n{}</section>\n", id,
      escaped(section.title), section.figures, section.tables);
}

// "+3.1 %, better".
std::string change_text(const Difference& difference) {
  constexpr double kSame = 0.0005;
  const auto change = difference.change();
  if (!change) return difference.second == difference.first ? "same" : "-";
  if (std::abs(*change) < kSame) return "same";
  const bool is_better = (*change < 0) == difference.less_is_better;
  return fmt::format("{:+.1f} %, {}", 100 * *change, is_better ? "better" : "worse");
}

}  // namespace

std::string side_mark(const ReportData& data, size_t side) {
  if (!has_two_sides(data)) return "";
  return side == 0 ? "A: " : "B: ";
}

std::string table_html(const std::string& summary, const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& columns, bool is_open) {
  std::string out = fmt::format(
      "<details{}><summary>{}</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"{}\"><table><thead><tr>",
      is_open ? " open" : "", escaped(summary), escaped(summary));
  const auto mark = [&](size_t column) { return columns[column] == 'l' ? " class=\"left\"" : ""; };
  for (size_t i = 0; i < header.size(); ++i) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", mark(i), escaped(header[i]));
  }
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += fmt::format("<td{}>{}</td>", mark(i), escaped(row[i]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></details>\n";
}

ReportSection difference_section(const std::vector<Difference>& list) {
  ReportSection section;
  section.title = "Differences, B against A";
  std::vector<std::vector<std::string>> cells;
  size_t better = 0;
  size_t worse = 0;
  for (const Difference& one : list) {
    const std::string change = change_text(one);
    better += change.find("better") != std::string::npos ? 1 : 0;
    worse += change.find("worse") != std::string::npos ? 1 : 0;
    if (change == "same") continue;
    cells.push_back({one.what, one.figure, exact_text(one.first, Unit::kNumber),
                     exact_text(one.second, Unit::kNumber), change});
  }
  if (list.empty()) {
    section.figures = "<p class=\"note\">No setting, trace and size is on both sides.</p>";
    return section;
  }
  section.figures = fmt::format(
      "<p>{} figures are on both sides: {} better in B, {} worse, {} the same. In the plots, B has "
      "hollow points and dashed lines.</p>",
      list.size(), better, worse, list.size() - better - worse);
  if (cells.empty()) return section;
  section.tables = table_html(fmt::format("{} figures that differ", cells.size()),
                              {"what", "figure", "A", "B", "change"}, cells, "llrrr", true);
  return section;
}

std::string report_page(const ReportData& data, const std::string& title,
                        std::optional<double> roof) {
  Styles styles;
  std::vector<std::pair<std::string, ReportSection>> sections;
  if (has_two_sides(data)) {
    sections.emplace_back("differences", difference_section(differences(data)));
  }
  sections.emplace_back("quality", quality_section(data, styles));
  sections.emplace_back("speed", speed_section(data, roof));
  sections.emplace_back("layers", heads_section(data));
  sections.emplace_back("drift", drift_section(data, styles));
  sections.emplace_back("memory", memory_section(data, styles));
  std::string links;
  std::string body;
  for (const auto& [id, section] : sections) {
    if (section.figures.empty() && section.tables.empty()) continue;
    links += fmt::format("<a href=\"#{}\">{}</a>", id, escaped(section.title));
    body += section_html(section, id);
  }
  std::string sources;
  for (const ReportSource& source : data.sources) sources += source_html(data, source);
  // The icon keeps browsers from asking for one.
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy"
      "\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n<link "
      "rel=\"icon\" href=\"data:,\">\n<title>{0}</title><style>{1}</style></head>\n<body><main>\n"
      "<header><h1>{0}</h1><p class=\"lead\">{2} rows of quality, {3} of speed, from {4} runs.</p>"
      "<nav aria-label=\"Sections\">{5}<a "
      "href=\"#sources\">Sources</a></nav></header>\n{6}<section "
      "id=\"sources\"><h2>Sources</h2><div class=\"sources\">\n{7}</div></section>\n<footer>Made "
      "by "
      "pariskv {8}. What each figure means: docs/cli.md and docs/quality.md.</footer>\n</main>"
      "</body></html>\n",
      escaped(title), kReportStyle, data.quality.size(), data.speed.size(), data.sources.size(),
      links, body, sources, pkv_version());
}

std::string report_json(const ReportData& data, const std::string& title) {
  Json sources = Json::array();
  for (const ReportSource& source : data.sources) {
    sources.push_back({{"side", source.side == 0 ? "A" : "B"},
                       {"file", source.file},
                       {"device", source.device},
                       {"date", source.date},
                       {"command", source.command},
                       {"rows", source.rows}});
  }
  Json quality = Json::array();
  for (const MeanRow& row : mean_rows(data.quality)) {
    quality.push_back({{"side", row.side == 0 ? "A" : "B"},
                       {"method", row.method},
                       {"setting", row.setting},
                       {"k", row.k},
                       {"traces", row.traces},
                       {"error", row.error},
                       {"recall", number_or_null(row.recall)},
                       {"candidate_recall", number_or_null(row.candidate_recall)},
                       {"read_bytes_per_key", number_or_null(row.read)},
                       {"kept_bytes_per_key", row.kept()}});
  }
  Json speed = Json::array();
  for (const SpeedLine& line : speed_lines(data.speed)) {
    for (const SpeedRow& row : line.rows) {
      speed.push_back({{"side", line.side == 0 ? "A" : "B"},
                       {"device", line.device},
                       {"what", line.name},
                       {"n", row.n},
                       {"min_us", row.min_us},
                       {"median_us", row.median_us},
                       {"max_us", row.max_us},
                       {"gb_per_s", number_or_null(row.gb_per_s())}});
    }
  }
  Json changes = Json::array();
  for (const Difference& one : differences(data)) {
    changes.push_back({{"what", one.what},
                       {"figure", one.figure},
                       {"a", one.first},
                       {"b", one.second},
                       {"change", number_or_null(one.change())}});
  }
  const Json whole = {{"title", title},
                      {"sources", std::move(sources)},
                      {"quality", std::move(quality)},
                      {"speed", std::move(speed)},
                      {"differences", std::move(changes)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pkv::cli
