#include "tools/cmd_report_means.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "tools/judge.h"

namespace pkv::cli {
namespace {

using SettingKey = std::tuple<size_t, std::string, int64_t>;  // side, setting, k

void add(Mean& mean, const std::optional<double>& value) {
  if (value) mean.add(*value);
}

// With one row per trace: of a trace that occurs twice, the last.
MeanRow mean_of(const SettingKey& key, const std::map<std::string, const QualityRow*>& by_trace) {
  MeanRow mean;
  std::tie(mean.side, mean.setting, mean.k) = key;
  Mean error, recall, candidate_recall, read, device, host;
  for (const auto& [trace, row] : by_trace) {
    mean.method = row->method;
    mean.least_error = mean.traces == 0 ? row->error : std::min(mean.least_error, row->error);
    mean.most_error = std::max(mean.most_error, row->error);
    ++mean.traces;
    error.add(row->error);
    add(recall, row->recall);
    add(candidate_recall, row->candidate_recall);
    add(read, row->read);
    add(device, row->device_kept);
    add(host, row->host_kept);
  }
  mean.error = error.value().value_or(0);
  mean.recall = recall.value();
  mean.candidate_recall = candidate_recall.value();
  mean.read = read.value();
  mean.device_kept = device.value();
  mean.host_kept = host.value();
  return mean;
}

bool is_like(const SpeedRow& a, const SpeedRow& b) {
  return a.side == b.side && a.device == b.device && a.stage == b.stage && a.traits == b.traits;
}

// Whether rows with several shares of candidates at one n are there, so that the share is needed to
// tell lines apart.
bool has_shares(const std::vector<SpeedRow>& rows, const SpeedRow& like) {
  std::map<int64_t, std::string> shares;
  return std::any_of(rows.begin(), rows.end(), [&](const SpeedRow& row) {
    return is_like(row, like) &&
           shares.emplace(row.n, row.candidates).first->second != row.candidates;
  });
}

// A trait by which rows of the set differ is part of a line's name.
std::string line_name(const SpeedRow& row, const std::set<std::string>& shared, bool has_shares) {
  std::string name = row.stage;
  for (const std::string& trait : row.traits) {
    if (shared.count(trait) == 0) name += ", " + trait;
  }
  if (has_shares) name += ", " + row.candidates;
  return name;
}

// Traits that all rows of a stage and machine have.
std::set<std::string> shared_traits(const std::vector<SpeedRow>& rows, const SpeedRow& like) {
  std::set<std::string> shared(like.traits.begin(), like.traits.end());
  for (const SpeedRow& row : rows) {
    if (row.device != like.device || row.stage != like.stage) continue;
    const std::set<std::string> own(row.traits.begin(), row.traits.end());
    for (auto it = shared.begin(); it != shared.end();) {
      it = own.count(*it) == 0 ? shared.erase(it) : std::next(it);
    }
  }
  return shared;
}

void compare_quality(const ReportData& data, std::vector<Difference>& list) {
  // Over the traces that both sides have.
  std::map<std::pair<std::string, int64_t>, std::map<std::string, const QualityRow*>> sides[2];
  std::vector<std::pair<std::string, int64_t>> order;
  for (const QualityRow& row : data.quality) {
    const std::pair<std::string, int64_t> key(row.setting, row.k);
    if (row.side == 0 && sides[0].count(key) == 0) order.push_back(key);
    sides[row.side][key][row.trace] = &row;
  }
  for (const auto& key : order) {
    std::map<std::string, const QualityRow*> common[2];
    for (const auto& [trace, row] : sides[0][key]) {
      const auto it = sides[1][key].find(trace);
      if (it == sides[1][key].end()) continue;
      common[0][trace] = row;
      common[1][trace] = it->second;
    }
    if (common[0].empty()) continue;
    const MeanRow a = mean_of({0, key.first, key.second}, common[0]);
    const MeanRow b = mean_of({1, key.first, key.second}, common[1]);
    const std::string what =
        fmt::format("{}, {} trace{}", a.name(), a.traces, a.traces == 1 ? "" : "s");
    list.push_back({what, "error", a.error, b.error, true});
    if (a.recall && b.recall) list.push_back({what, "recall", *a.recall, *b.recall, false});
    if (a.read && b.read) list.push_back({what, "bytes read per key", *a.read, *b.read, true});
    if (a.device_kept && b.device_kept) {
      list.push_back({what, "bytes kept per key", a.kept(), b.kept(), true});
    }
  }
}

void compare_speed(const ReportData& data, std::vector<Difference>& list) {
  std::vector<SpeedLine> lines = speed_lines(data.speed);
  for (const SpeedLine& first : lines) {
    if (first.side != 0) continue;
    for (const SpeedLine& second : lines) {
      // Machines may differ: a file per machine is what one compares.
      if (second.side != 1 || second.rows.front().stage != first.rows.front().stage ||
          second.rows.front().traits != first.rows.front().traits) {
        continue;
      }
      for (const SpeedRow& row : first.rows) {
        for (const SpeedRow& other : second.rows) {
          if (other.n != row.n || other.candidates != row.candidates) continue;
          list.push_back({fmt::format("{}, n = {}", first.name, row.n), "median µs", row.median_us,
                          other.median_us, true});
        }
      }
    }
  }
}

}  // namespace

std::string MeanRow::name() const {
  if (setting.find(":k=") != std::string::npos) return setting;
  return fmt::format("{}, k = {}", setting, k);
}

std::vector<MeanRow> mean_rows(const std::vector<QualityRow>& rows) {
  std::map<SettingKey, std::map<std::string, const QualityRow*>> groups;
  std::vector<SettingKey> order;
  std::set<std::string> traces[2];
  for (const QualityRow& row : rows) {
    const SettingKey key(row.side, row.setting, row.k);
    if (groups.count(key) == 0) order.push_back(key);
    // Judged twice: the row that tells what was read, else the last.
    const QualityRow*& held = groups[key][row.trace];
    if (held == nullptr || row.read || !held->read) held = &row;
    traces[row.side].insert(row.trace);
  }
  std::vector<MeanRow> means;
  for (const SettingKey& key : order) {
    means.push_back(mean_of(key, groups[key]));
    means.back().has_all = means.back().traces == traces[means.back().side].size();
  }
  return means;
}

std::vector<SpeedLine> speed_lines(const std::vector<SpeedRow>& rows) {
  std::vector<SpeedLine> lines;
  for (const SpeedRow& row : rows) {
    const std::string name = line_name(row, shared_traits(rows, row), has_shares(rows, row));
    const auto it = std::find_if(lines.begin(), lines.end(), [&](const SpeedLine& line) {
      return line.side == row.side && line.device == row.device && line.name == name;
    });
    if (it == lines.end()) {
      lines.push_back({row.side, row.device, row.stage, name, {row}});
    } else {
      it->rows.push_back(row);
    }
  }
  for (SpeedLine& line : lines) {
    std::stable_sort(line.rows.begin(), line.rows.end(), [](const SpeedRow& a, const SpeedRow& b) {
      return std::pair(a.n, a.median_us) < std::pair(b.n, b.median_us);
    });
    // Measured twice: the faster one.
    line.rows.erase(std::unique(line.rows.begin(), line.rows.end(),
                                [](const SpeedRow& a, const SpeedRow& b) { return a.n == b.n; }),
                    line.rows.end());
  }
  return lines;
}

size_t Styles::of(const std::string& name) {
  // Ours and what it is held against have their colours in any page.
  static constexpr const char* kFixed[] = {"default", "paper", "fresh"};
  const auto* const fixed = std::find(std::begin(kFixed), std::end(kFixed), name);
  if (fixed != std::end(kFixed)) return static_cast<size_t>(fixed - std::begin(kFixed));
  return numbers_.emplace(name, std::size(kFixed) + numbers_.size()).first->second;
}

std::optional<double> Difference::change() const {
  if (first == 0) return std::nullopt;
  return (second - first) / first;
}

std::vector<Difference> differences(const ReportData& data) {
  std::vector<Difference> list;
  compare_quality(data, list);
  compare_speed(data, list);
  return list;
}

}  // namespace pkv::cli
