// A browser as a printer of pages.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pkv::cli {

// PARISKV_BROWSER, else the first browser on PATH that can print. Exit code 5 if there is none.
absl::StatusOr<std::string> find_browser();

// The bytes of the page `html` as a PDF.
absl::StatusOr<std::string> print_pdf(const std::string& browser, const std::string& html);

}  // namespace pkv::cli
