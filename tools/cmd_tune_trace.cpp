#include "tools/cmd_tune_trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tools/cmd_bench_shape.h"
#include "tools/element.h"
#include "tools/interrupt.h"

namespace pkv::cli {
namespace {

constexpr int64_t kLeastQueries = 4;  // that search, and that judge

// Of one query: the mean over its heads.
double query_error(const Trace& trace, std::span<const double> wanted, std::span<const float> got) {
  const auto dim = static_cast<size_t>(trace.value_dim());
  Mean mean;
  for (size_t first = 0; first < wanted.size(); first += dim) {
    mean.add(relative_error(wanted.subspan(first, dim), got.subspan(first, dim)));
  }
  return mean.value().value_or(0);
}

Spread spread_of(const std::vector<double>& errors) {
  const auto count = static_cast<double>(errors.size());
  const double mean = std::accumulate(errors.begin(), errors.end(), 0.0) / count;
  double square = 0;
  for (const double error : errors) square += (error - mean) * (error - mean);
  const double deviation = std::sqrt(square / std::max(1.0, count - 1));
  return {mean, mean + 2 * deviation / std::sqrt(count)};
}

}  // namespace

std::string Choice::name() const {
  return fmt::format("candidates={:g}:codec={}:k={}:tail={}", candidates, codec, k, tail);
}

absl::StatusOr<std::unique_ptr<TuneTrace>> TuneTrace::load(const Engine& engine,
                                                           const std::string& path,
                                                           const OptionValues& fixed,
                                                           const Setting& setting) {
  std::unique_ptr<TuneTrace> tuned(new TuneTrace(engine, fixed, setting));
  CLI_ASSIGN_OR_RETURN(tuned->trace_, load_trace(engine, path));
  CLI_RETURN_IF_ERROR(tuned->split());
  for (const int64_t query : tuned->search_) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    tuned->outputs_.push_back(
        attend_exactly(tuned->trace_, query, tuned->regions_of(query), 0).output);
  }
  return tuned;
}

absl::Status TuneTrace::split() {
  const int64_t rest = trace_.query_count() - setting_.fit_queries;
  if (rest < 2 * kLeastQueries) {
    return usage_error(
        "--fit-queries={}: accepted are 0..{} for {}: of its {} queries, {} must search and {} "
        "judge",
        setting_.fit_queries, std::max<int64_t>(0, trace_.query_count() - 2 * kLeastQueries),
        trace_.path, trace_.query_count(), kLeastQueries, kLeastQueries);
  }
  std::vector<int64_t> order(static_cast<size_t>(rest));
  std::iota(order.begin(), order.end(), setting_.fit_queries);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return trace_.positions[static_cast<size_t>(a)] < trace_.positions[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < order.size(); ++i) (i % 2 == 0 ? search_ : judged_).push_back(order[i]);
  const int64_t fit = std::max<int64_t>(setting_.fit_queries, 1) - 1;
  setting_.fit_position = trace_.positions[static_cast<size_t>(fit)];
  setting_.last_position = trace_.positions[static_cast<size_t>(order.back())];
  return absl::OkStatus();
}

Regions TuneTrace::regions_of(int64_t query) const {
  return regions_at(trace_.positions[static_cast<size_t>(query)], setting_.sink, setting_.local);
}

int64_t TuneTrace::keys() const {
  return regions_at(setting_.last_position, setting_.sink, setting_.local).zone_tokens();
}

OptionValues TuneTrace::values_of(const Choice& choice) const {
  OptionValues values = fixed_;
  values["codec"] = choice.codec;
  values["tail"] = choice.tail;
  values["candidates"] = fmt::format("{:g}", choice.candidates);
  values["k"] = std::to_string(choice.k);
  return values;
}

absl::StatusOr<StepWork> TuneTrace::work(const Choice& choice, int64_t n) const {
  CLI_ASSIGN_OR_RETURN(const Config config, make_config("default", values_of(choice)));
  CLI_RETURN_IF_ERROR(set_trace_options(config.get(), trace_));
  CLI_ASSIGN_OR_RETURN(const Codec codec, import_codec(engine_, config.get(), trace_.kv_heads(),
                                                       trace_.head_dim(), trace_.value_dim()));
  StepShape shape;
  CLI_ASSIGN_OR_RETURN(shape.sizes, record_sizes(codec.get()));
  CLI_ASSIGN_OR_RETURN(const std::string samples, config_value(config.get(), "tail_samples"));
  CLI_ASSIGN_OR_RETURN(shape.samples, parse_integer("tail_samples", samples, 0, INT32_MAX));
  shape.kv_heads = trace_.kv_heads();
  shape.query_heads = trace_.query_heads();
  shape.n = n > 0 ? n : keys();
  shape.k = choice.k;
  shape.candidates = candidates_of(choice.candidates, shape.n, choice.k);
  shape.tail = tail_number(choice.tail);
  shape.has_4_bits = choice.tail == "sketch4";
  shape.row_bytes = trace_.head_dim() * dtype_bytes(trace_.keys.dtype) +
                    trace_.value_dim() * dtype_bytes(trace_.values.dtype);
  shape.dense = setting_.sink + setting_.local;
  return work_of(shape);
}

absl::StatusOr<Spread> TuneTrace::search(const Choice& choice) const {
  CLI_ASSIGN_OR_RETURN(const auto method,
                       create_retrieval(engine_, trace_, "default", values_of(choice), setting_));
  std::vector<double> errors;
  Exact exact;
  for (size_t i = 0; i < search_.size(); ++i) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    exact.regions = regions_of(search_[i]);
    CLI_ASSIGN_OR_RETURN(const Answer answer, method->answer(search_[i], exact));
    errors.push_back(query_error(trace_, outputs_[i], answer.output));
  }
  return spread_of(errors);
}

absl::StatusOr<TuneTrace::Verdict> TuneTrace::judge(const Choice& choice) const {
  CLI_ASSIGN_OR_RETURN(const auto method,
                       create_retrieval(engine_, trace_, "default", values_of(choice), setting_));
  Verdict verdict;
  std::vector<double> errors;
  for (const int64_t query : judged_) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const Exact exact = attend_exactly(trace_, query, regions_of(query), choice.k);
    CLI_ASSIGN_OR_RETURN(const Answer answer, method->answer(query, exact));
    verdict.figures.add(trace_, exact, answer);
    errors.push_back(query_error(trace_, exact.output, answer.output));
  }
  verdict.error = spread_of(errors);
  verdict.bytes_per_key = method->bytes_per_key();
  return verdict;
}

}  // namespace pkv::cli
