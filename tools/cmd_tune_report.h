// What `pariskv tune` prints about a search.
#pragma once

#include <string>
#include <vector>

#include "tools/cmd_tune_search.h"

namespace pkv::cli {

// The chosen setting on one trace, by the queries that judge.
struct TuneRow {
  std::string trace;
  int64_t n = 0;
  int64_t searched = 0;  // queries
  int64_t judged = 0;
  bool is_dense = false;  // attended in full: no error, nothing found
  TuneTrace::Verdict verdict;
  double cost = 0;
  double read_bytes_per_key = 0;  // of the zone, per token of the trace and KV head
};

struct TuneReport {
  double target = 0;
  std::string unit;        // of costs: "bytes" or "us"
  std::string unit_about;  // a sentence
  const Found* found = nullptr;
  std::vector<TuneRow> rows;

  // On the queries that judge too, for every trace.
  bool is_reached() const;
};

std::string tune_json(const TuneReport& report);
std::string tune_table(const TuneReport& report);

}  // namespace pkv::cli
