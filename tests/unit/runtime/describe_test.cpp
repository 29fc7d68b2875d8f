#include "core/runtime/describe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/unit/runtime/plugins.h"

namespace pkv {
namespace {

using Json = nlohmann::json;

TEST_CASE("describe: what cpu_ref supports is all of docs/algorithm.md, section 9") {
  const auto registry = test::make_registry();
  const Json json = Json::parse(describe_device(**registry->open_device("cpu_ref", 0)));
  CHECK(json["backend"] == "cpu_ref");
  CHECK(json["device_type"] == "cpu");
  CHECK(json["lanes"] == 1);
  CHECK(json["head_dims"].size() == 72);
  CHECK(json["head_dims"].front() == 8);
  CHECK(json["head_dims"].back() == 576);
  CHECK(json["dtypes"] == Json({"f32", "f16", "bf16"}));
  CHECK(json["codecs"] == Json({"polar4", "scalar4", "scalar5"}));
  CHECK(json["votes"] == Json({"tier", "graded"}));
  CHECK(json["tails"] == Json({"drop", "mean", "sampled", "sketch2", "sketch4"}));
  REQUIRE(json["layouts"].size() == 3);
  CHECK(json["layouts"][1]["codec"] == "scalar4");
  CHECK(json["layouts"][1]["record_bytes"] == 68);  // ARCHITECTURE.md, "Memory"
  CHECK(json["layouts"][1]["row_bytes"] >= 68 * 1024);
}

TEST_CASE("describe: the registry lists places and every backend, usable or not") {
  const test::PluginFolder folder;
  const std::string path = folder.add("fake");
  folder.add("old", "other_major");
  folder.add_text("pariskv_backend_\xff\"\n.so", "");
  const auto registry = test::make_registry(folder.path() + ":relative");
  const Json json = Json::parse(describe_registry(*registry));
  CHECK(json["version"] == "0.1.0");
  CHECK(json["places"][0]["folder"] == folder.path());
  CHECK(json["places"][0]["setting"] == "backend_path");
  CHECK(json["places"][1]["outcome"] == "not searched: not an absolute folder");
  REQUIRE(json["backends"].size() == 5);
  CHECK(json["backends"][0]["name"] == "cpu_ref");
  CHECK(json["backends"][1]["name"] == "cpu");
  CHECK(json["backends"][0]["builtin"] == true);
  CHECK(json["backends"][0]["devices"].size() == 1);
  CHECK(json["backends"][2]["path"] == path);
  CHECK(json["backends"][2]["version"] == "7.5 \"fake\"\n");
  CHECK(json["backends"][2]["devices"].size() == 2);
  CHECK(json["backends"][2]["devices"][1]["ordinal"] == 1);
  CHECK(json["backends"][2]["devices"][0]["head_dims"].empty());
  CHECK(json["backends"][3]["usable"] == false);
  CHECK(json["backends"][3]["reason"].get<std::string>().find("interface 5.3") !=
        std::string::npos);
  CHECK_FALSE(json["backends"][3].contains("devices"));
  CHECK(json["backends"][4]["path"].get<std::string>().find("\xef\xbf\xbd\"\n") !=
        std::string::npos);
}

TEST_CASE("describe: a device that does not open says why") {
  const test::PluginFolder folder;
  folder.add("fake", "no_open");
  const Json json = Json::parse(describe_registry(*test::make_registry(folder.path())));
  CHECK(json["backends"][2]["devices"][0]["error"] ==
        "fake: opening device 0: the backend gave no reason");
}

}  // namespace
}  // namespace pkv
