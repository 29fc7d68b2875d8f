#include "tests/conformance/merge.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fmt/core.h"

namespace pkv::conformance {
namespace {

using Json = nlohmann::ordered_json;

Json read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be read", path));
  return Json::parse(file);
}

// What all runs of one report share.
Json head_of(const Json& run) {
  Json head;
  for (const char* field :
       {"version", "backend", "backend_version", "device", "reference", "options", "seed"}) {
    head[field] = run.at(field);
  }
  return head;
}

Outcome outcome_of(const std::string& name) {
  if (name == "passed") return Outcome::kPassed;
  if (name == "skipped") return Outcome::kSkipped;
  if (name == "expected") return Outcome::kExpected;
  return Outcome::kFailed;
}

void take_head(const Json& run, Earlier& earlier) {
  earlier.places = {
      run.at("backend"), run.at("backend_version"), run.at("device"), run.at("reference"), {}};
  earlier.options.backend = earlier.places.backend;
  earlier.options.seed = run.at("seed").get<uint64_t>();
  for (const auto& [name, value] : run.at("options").items()) {
    earlier.options.set.emplace_back(name, value.get<std::string>());
  }
  if (!run.contains("paths")) return;
  earlier.options.paths = true;
  for (const auto& [path, count] : run.at("paths").items()) earlier.places.paths.push_back(path);
}

}  // namespace

Earlier read_earlier(const std::vector<std::string>& files, const Cases& cases) {
  Earlier earlier;
  Json head;
  std::map<std::string, Json> found;
  for (const std::string& path : files) {
    try {
      const Json run = read_file(path);
      if (head.is_null()) {
        head = head_of(run);
        take_head(run, earlier);
      }
      if (head != head_of(run)) {
        throw std::runtime_error(
            fmt::format("{} against {} of {}", head_of(run).dump(), head.dump(), files[0]));
      }
      for (const Json& one : run.at("cases")) {
        if (found.emplace(one.at("name").get<std::string>(), one).second) continue;
        throw std::runtime_error(fmt::format("{}: in another file too", one.at("name").dump()));
      }
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(fmt::format("{}: no results of --json: {}", path, error.what()));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("{}: {}", path, error.what()));
    }
  }
  for (const Case& subject : cases) {
    const auto at = found.find(subject.name);
    if (at == found.end()) continue;
    Result result = {&subject, outcome_of(at->second.at("outcome")), at->second.at("text"),
                     at->second.at("seconds")};
    result.paths = at->second.value("paths", std::vector<std::string>());
    earlier.results.push_back(result);
    found.erase(at);
  }
  if (!found.empty()) {
    throw std::runtime_error(fmt::format("{}: no case of that name", found.begin()->first));
  }
  return earlier;
}

}  // namespace pkv::conformance
