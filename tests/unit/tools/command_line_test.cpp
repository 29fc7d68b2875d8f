#include "tools/command_line.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "tools/status.h"

namespace pkv::cli {
namespace {

struct Parsed {
  Common common;
  int64_t count = 5;
  double share = 0.5;
  std::string name;
  bool is_on = false;
  std::vector<std::string> files;
  absl::StatusOr<bool> outcome = false;
};

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed;
  CommandLine line("try", "FILE", "Tries.");
  line.integer("how-many", &parsed.count, -3, 9, "a count");
  line.real("share", &parsed.share, 0, 1, "a share");
  line.text("name", &parsed.name, "a name");
  line.flag("is-on", &parsed.is_on, "a flag");
  line.common(&parsed.common);
  line.positional(&parsed.files, 1, 2, "files");
  parsed.outcome = line.parse(arguments);
  return parsed;
}

std::string refusal(const std::vector<std::string>& arguments) {
  const Parsed parsed = parse(arguments);
  CHECK(exit_code(parsed.outcome.status()) == kUsage);
  return std::string(parsed.outcome.status().message());
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("command line: options in any form and order, the rest by position") {
  const Parsed parsed =
      parse({"a", "--how-many=-2", "--share", "0.25", "b", "--is_on", "--name=x"});
  REQUIRE(parsed.outcome.ok());
  CHECK(parsed.count == -2);
  CHECK(parsed.share == 0.25);
  CHECK(parsed.name == "x");
  CHECK(parsed.is_on);
  CHECK(parsed.files == std::vector<std::string>{"a", "b"});
  CHECK(parse({"a", "--how_many", "9"}).count == 9);
  CHECK(parse({"a", "--how_many", "-3"}).count == -3);
  CHECK(parse({"a", "--name=under_score"}).name == "under_score");
  CHECK(parse({"a"}).count == 5);
}

TEST_CASE("command line: behind -- everything is a position") {
  const Parsed parsed = parse({"--", "--is_on"});
  REQUIRE(parsed.outcome.ok());
  CHECK(parsed.files == std::vector<std::string>{"--is_on"});
  CHECK(!parsed.is_on);
}

TEST_CASE("command line: refusals name option, value and what is accepted") {
  CHECK(has(refusal({"a", "--how-many", "10"}), "--how-many=10: accepted are whole numbers -3..9"));
  CHECK(has(refusal({"a", "--how-many", "2.0"}), "-3..9"));
  CHECK(has(refusal({"a", "--how-many", ""}), "-3..9"));
  CHECK(has(refusal({"a", "--share", "1.01"}), "--share=1.01: accepted are numbers 0..1"));
  CHECK(has(refusal({"a", "--share", "nan"}), "--share=nan"));
  CHECK(has(refusal({"a", "--shar", "1"}), "--share"));
  CHECK(has(refusal({"a", "--how", "1"}), "unknown option --how"));
  CHECK(has(refusal({"a", "-z"}), "-z"));
  CHECK(has(refusal({"a", "--is-on", "--is-on"}), "given twice"));
  CHECK(has(refusal({"a", "--is-on=1"}), "is-on"));
  CHECK(has(refusal({"a", "--name="}), "name"));
  CHECK(has(refusal({}), "1..2"));
  CHECK(has(refusal({"a", "b", "c"}), "\"c\""));
}

TEST_CASE("command line: numbers are read to the last character") {
  CHECK(!parse_integer("n", "12 ", 0, 99).ok());
  CHECK(!parse_integer("n", "0x1", 0, 99).ok());
  CHECK(!parse_integer("n", "99999999999999999999", 0, std::numeric_limits<int64_t>::max()).ok());
  CHECK(*parse_integer("n", "9223372036854775807", 0, std::numeric_limits<int64_t>::max()) ==
        std::numeric_limits<int64_t>::max());
  CHECK(!parse_real("r", "1,5", 0, 9).ok());
  CHECK(!parse_real("r", "inf", 0, 9).ok());
  CHECK(*parse_real("r", "1e-3", 0, 9) == 1e-3);
}

TEST_CASE("command line: lists keep empty parts") {
  CHECK(split_list("a,b") == std::vector<std::string>{"a", "b"});
  CHECK(split_list("a,") == std::vector<std::string>{"a", ""});
  CHECK(split_list("") == std::vector<std::string>{""});
}

TEST_CASE("command line: the nearest name, if one is near") {
  const std::vector<std::string> names = {"candidates", "k", "seed"};
  CHECK(nearest_name("candidate", names) == "candidates");
  CHECK(nearest_name("sede", names) == "seed");
  CHECK(nearest_name("streams", names).empty());
  CHECK(nearest_name(std::string(1000, 'k'), names).empty());
}

}  // namespace
}  // namespace pkv::cli
