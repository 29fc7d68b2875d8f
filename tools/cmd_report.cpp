// pariskv report: result files as a page that a person reads. docs/cli.md, section 8.
#include <optional>

#include "tools/browser.h"
#include "tools/cmd_report_data.h"
#include "tools/cmd_report_page.h"
#include "tools/command_line.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace pkv::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> files;
  std::vector<std::string> compared;
  std::string title = "pariskv results";
  std::string pdf;
  double bandwidth = 0;  // 0: not given
  bool is_json = false;
  OutputOptions output;

  std::vector<std::string> inputs() const {
    std::vector<std::string> all = files;
    all.insert(all.end(), compared.begin(), compared.end());
    return all;
  }
  OutputOptions pdf_output() const { return {pdf, output.is_forced}; }
};

absl::Status check_outputs(const ReportOptions& options) {
  if (options.pdf.empty()) return check_output(options.output, options.inputs());
  if (options.is_json) return usage_error("--pdf: not accepted with --json");
  if (options.pdf == options.output.path) {
    return usage_error("--pdf={}: is --output as well", options.pdf);
  }
  CLI_RETURN_IF_ERROR(check_output(options.pdf_output(), options.inputs()));
  if (options.output.path.empty()) return absl::OkStatus();
  return check_output(options.output, options.inputs());
}

absl::StatusOr<bool> parse_report(const Arguments& arguments, ReportOptions& options) {
  CommandLine line(
      "report", "RESULT... [OPTION...]",
      "One HTML page, which loads nothing, of result files: JSON of pariskv eval, bench and\n"
      "tune, and of python -m bench.quality. Quality against bytes, speed against n, recall\n"
      "over layers, drift, memory (docs/cli.md).");
  line.positional(&options.files, 1, SIZE_MAX, "result files (.json)");
  line.custom("compare", "comma-separated result files: a second side, set against the first",
              [&](const std::string& text) -> absl::Status {
                options.compared = split_list(text);
                for (const std::string& path : options.compared) {
                  if (path.empty()) {
                    return usage_error("--compare={}: accepted are files between commas", text);
                  }
                }
                return absl::OkStatus();
              });
  line.text("title", &options.title, "of the page");
  line.real("bandwidth", &options.bandwidth, 1e-3, 1e6,
            "the roof of the speed plots in GB/s, instead of what was read");
  line.text("pdf", &options.pdf, "print the page into this file too, by a browser");
  line.flag("json", &options.is_json, "what the page shows as JSON instead");
  offer_output(line, &options.output);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  CLI_RETURN_IF_ERROR(check_outputs(options));
  return true;
}

}  // namespace

Outcome run_report(const Arguments& arguments) {
  ReportOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_report(arguments, options));
  if (!is_parsed) return kDone;
  std::string browser;
  if (!options.pdf.empty()) {
    CLI_ASSIGN_OR_RETURN(browser, find_browser());
  }
  ReportData data;
  for (const std::string& path : options.files) {
    CLI_RETURN_IF_ERROR(load_results(path, 0, data));
    CLI_RETURN_IF_ERROR(check_interrupt());
  }
  for (const std::string& path : options.compared) {
    CLI_RETURN_IF_ERROR(load_results(path, 1, data));
  }
  if (options.is_json) {
    CLI_RETURN_IF_ERROR(write_output(options.output, report_json(data, options.title)));
    return kDone;
  }
  const std::optional<double> roof =
      options.bandwidth > 0 ? std::optional(options.bandwidth) : std::nullopt;
  const std::string page = report_page(data, options.title, roof);
  if (!options.pdf.empty()) {
    CLI_ASSIGN_OR_RETURN(const std::string pdf, print_pdf(browser, page));
    CLI_RETURN_IF_ERROR(write_output(options.pdf_output(), pdf));
    if (options.output.path.empty()) return kDone;
  }
  CLI_RETURN_IF_ERROR(write_output(options.output, page));
  return kDone;
}

}  // namespace pkv::cli
