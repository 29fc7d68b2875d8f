#include "core/runtime/registry.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text.h"
#include "tests/unit/runtime/plugins.h"

namespace pkv {
namespace {

using test::first_plugin;
using test::make_registry;
using test::only_plugin;
using test::PluginFolder;
using test::Setting;

bool has(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return true;
  MESSAGE("text: ", std::string(text), "\nlacks: ", std::string(part));
  return false;
}

std::vector<std::string> plugin_names(const Registry& registry) {
  std::vector<std::string> names;
  for (int32_t i = 0; i < registry.size(); ++i) {
    if (!registry.at(i).is_builtin) names.push_back(registry.at(i).name);
  }
  return names;
}

// Loads a fake backend with a fault, by search and by path: listed with a reason that has all of
// `parts`, and refused with `code` and the same text.
void check_refused(const std::string& fault, absl::StatusCode code,
                   const std::vector<std::string>& parts) {
  CAPTURE(fault);
  const PluginFolder folder;
  const std::string path = folder.add("fake", fault);
  {
    const auto registry = make_registry(folder.path());
    const Backend& backend = only_plugin(*registry);
    CHECK_FALSE(backend.is_usable);
    CHECK(backend.path == path);
    CHECK(backend.status.code() == code);
    CHECK(has(backend.reason, path));
    for (const std::string& part : parts) CHECK(has(backend.reason, part));
    CHECK(registry->open_device("cpu_ref", 0).ok());  // others still load
    const auto again = registry->load(path);
    CHECK(again.status().code() == code);
    CHECK(registry->size() == first_plugin() + 1);
  }
  const auto registry = make_registry();
  const auto loaded = registry->load(path);
  CHECK(loaded.status().code() == code);
  for (const std::string& part : parts) CHECK(has(to_std(loaded.status().message()), part));
  CHECK(registry->size() == first_plugin());
}

TEST_CASE("registry: without plug-ins there are the built-in ones, and auto takes the fast one") {
  const auto registry = make_registry();
  REQUIRE(registry->size() == first_plugin());
  CHECK(registry->at(0).name == "cpu_ref");
  CHECK(registry->at(0).is_usable);
  CHECK(registry->at(0).is_builtin);
  CHECK(registry->at(0).path.empty());
  CHECK(registry->at(1).name == "cpu");
  CHECK(registry->at(1).is_builtin);
  const auto device = registry->open_device("auto", 0);
  REQUIRE(device.ok());
  CHECK(std::string((*device)->backend().name) == "cpu");
}

TEST_CASE("registry: a plug-in in a folder is listed, opened by name and by any ordinal it has") {
  const PluginFolder folder;
  const std::string path = folder.add("fake-2");
  const auto registry = make_registry(folder.path());
  const Backend& backend = only_plugin(*registry);
  CHECK(backend.name == "fake-2");
  CHECK(backend.path == path);
  CHECK(backend.device_count == 2);
  CHECK(backend.score == -1);
  const auto device = registry->open_device("fake-2", 1);
  REQUIRE(device.ok());
  CHECK((*device)->info().device_id == 1);
  CHECK((*device)->name().size() == 127);  // cut where the backend wrote no NUL
  CHECK(registry->open_device("fake-2", 2).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(has(to_std(registry->open_device("fake-2", -1).status().message()),
            "ordinal=-1, accepted: 0..1"));
}

TEST_CASE("registry: a device lives on without the registry") {
  const PluginFolder folder;
  folder.add("fake");
  auto registry = make_registry(folder.path());
  const auto device = registry->open_device("fake", 0);
  registry.reset();
  CHECK((*device)->call("syncing", (*device)->backend().stream_sync, nullptr).ok());
}

TEST_CASE("registry: folders are searched in order, names ascending") {
  const PluginFolder first;
  const PluginFolder second;
  const PluginFolder third;
  second.add("a");
  first.add("c");
  first.add("b");
  third.add("d");
  const Setting path("PKV_BACKEND_PATH", ":" + third.path() + ":");
  const auto registry = make_registry(first.path() + ":" + second.path());
  CHECK(plugin_names(*registry) == std::vector<std::string>{"b", "c", "a", "d"});
  REQUIRE(registry->places().size() == 4);
  CHECK(registry->places()[0].folder == first.path());
  CHECK(registry->places()[0].origin == "backend_path");
  CHECK(registry->places()[0].outcome == "searched");
  CHECK(registry->places()[2].origin == "PKV_BACKEND_PATH");
  CHECK(registry->places()[3].origin == "beside the library");
  const std::string& beside = registry->places()[3].folder;
  CHECK(beside.front() == '/');
  CHECK(has(beside, "/pariskv/backends"));
}

TEST_CASE("registry: only pariskv_backend_*.so counts") {
  const PluginFolder folder;
  folder.add_text("pariskv_backend_.so", "");
  folder.add_text("pariskv_backend_x.so.1", "");
  folder.add_text("libpariskv_backend_x.so", "");
  folder.add_text("notes.txt", "");
  CHECK(make_registry(folder.path())->size() == first_plugin());
}

TEST_CASE("registry: the current folder is never searched") {
  const PluginFolder folder;
  folder.add("fake");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto registry = make_registry(".::./:pariskv");
  std::filesystem::current_path(before);
  CHECK(registry->size() == first_plugin());
  CHECK(registry->places()[0].outcome == "not searched: not an absolute folder");
}

TEST_CASE("registry: a folder that every user may write to is not searched") {
  namespace fs = std::filesystem;
  const PluginFolder folder;
  const std::string path = folder.add("fake");
  for (const auto more : {fs::perms::others_write, fs::perms::others_all | fs::perms::sticky_bit}) {
    fs::permissions(folder.path(), fs::perms::owner_all | more);
    const auto registry = make_registry(folder.path());
    CHECK(registry->size() == first_plugin());
    CHECK(registry->places()[0].outcome == "not searched: every user may write there");
    CHECK(registry->load(path).ok());  // a path is the caller's own word
  }
  fs::permissions(folder.path(), fs::perms::owner_all | fs::perms::group_all);
  CHECK(make_registry(folder.path())->size() == first_plugin() + 1);
}

TEST_CASE("registry: a folder that is not there is named as such") {
  const auto registry = make_registry("/nonexistent/folder");
  CHECK(registry->size() == first_plugin());
  CHECK(has(registry->places()[0].outcome, "No such file"));
}

TEST_CASE("registry: the same file is listed once, through links and by path") {
  const PluginFolder folder;
  const PluginFolder links;
  const std::string path = folder.add("fake");
  const std::string link = links.link(path, "pariskv_backend_other.so");
  const auto registry = make_registry(folder.path() + ":" + links.path() + ":" + folder.path());
  CHECK(registry->size() == first_plugin() + 1);
  CHECK(*registry->load(path) == first_plugin());
  CHECK(*registry->load(link) == first_plugin());
  CHECK(*registry->load(folder.path() + "/../" + folder.path().substr(folder.path().rfind('/')) +
                        "/pariskv_backend_fake.so") == first_plugin());
  CHECK(registry->size() == first_plugin() + 1);
}

TEST_CASE("registry: a name that is taken is refused") {
  const PluginFolder first;
  const PluginFolder second;
  const std::string path = first.add("fake");
  const std::string copy = second.add("fake");
  const auto registry = make_registry(first.path() + ":" + second.path());
  REQUIRE(registry->size() == first_plugin() + 2);
  CHECK(registry->at(first_plugin()).is_usable);
  CHECK_FALSE(registry->at(first_plugin() + 1).is_usable);
  CHECK(registry->at(first_plugin() + 1).name == "fake");
  CHECK(has(registry->at(first_plugin() + 1).reason, copy));
  CHECK(has(registry->at(first_plugin() + 1).reason, path));
  CHECK(registry->at(first_plugin() + 1).status.code() == absl::StatusCode::kAlreadyExists);
  CHECK(registry->open_device("fake", 0).ok());
  check_refused("cpu_ref_name", absl::StatusCode::kAlreadyExists,
                {"cpu_ref", "a built-in backend"});
}

TEST_CASE("registry: another interface version is refused before a function is called") {
  check_refused("other_major", absl::StatusCode::kFailedPrecondition, {"5.3", "1.0"});
  check_refused("small_table", absl::StatusCode::kFailedPrecondition,
                {std::to_string(sizeof(pkv_backend) - 8), std::to_string(sizeof(pkv_backend))});
}

TEST_CASE("registry: a newer minor version with a larger table is taken") {
  const PluginFolder folder;
  folder.add("fake", "newer_minor");
  CHECK(only_plugin(*make_registry(folder.path())).is_usable);
}

TEST_CASE("registry: what does not fit is refused with the reason") {
  check_refused("other_format", absl::StatusCode::kFailedPrecondition,
                {"format version 77", "version 1"});
  check_refused("asan", absl::StatusCode::kFailedPrecondition, {"sanitizers", "address"});
  check_refused("tsan", absl::StatusCode::kFailedPrecondition, {"sanitizers", "thread"});
  check_refused("bad_name", absl::StatusCode::kInvalidArgument, {"\"Fake Backend\"", "a-z"});
  check_refused("null_name", absl::StatusCode::kInvalidArgument, {"NULL"});
  check_refused("auto_name", absl::StatusCode::kInvalidArgument, {"auto"});
  check_refused("refuses", absl::StatusCode::kFailedPrecondition, {"needs interface 1.4"});
  check_refused("silent", absl::StatusCode::kFailedPrecondition, {"no reason given"});
}

TEST_CASE("registry: a debug build, or one without version and about, is taken") {
  for (const char* fault : {"debug", "null_texts"}) {
    const PluginFolder folder;
    folder.add("fake", fault);
    CHECK(only_plugin(*make_registry(folder.path())).is_usable);
  }
}

TEST_CASE("registry: each missing slot is named") {
  const char* const kFirst[] = {
      "device_count",   "device_info",     "device_open",  "device_close",  "memory_alloc",
      "memory_free",    "memory_copy",     "memory_fill",  "stream_create", "stream_wrap",
      "stream_destroy", "stream_sync",     "event_create", "event_destroy", "event_record",
      "event_wait",     "store_row_bytes", "store_import", "store_export"};
  std::vector<std::string> slots(std::begin(kFirst), std::end(kFirst));
  for (const char* stage : {"fit", "encode", "vote", "select", "rerank", "fetch", "attend"}) {
    for (const char* slot : {"supports", "scratch_bytes", "run"}) {
      slots.push_back(std::string(stage) + "." + slot);
    }
  }
  REQUIRE(slots.size() == 40);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    check_refused("slot" + std::to_string(i), absl::StatusCode::kInvalidArgument,
                  {"slot " + slots[i] + " is NULL"});
  }
}

TEST_CASE("registry: a library without the entry symbol") {
  const PluginFolder folder;
  const std::string path = folder.add_without_entry("empty");
  const auto registry = make_registry(folder.path());
  const Backend& backend = only_plugin(*registry);
  CHECK(backend.name.empty());
  CHECK(has(backend.reason, path));
  CHECK(has(backend.reason, "pkv_backend_query"));
  CHECK(registry->load(path).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(registry->open_device("auto", 0).ok());
}

TEST_CASE("registry: files that are no libraries, dangling links and folders") {
  const PluginFolder folder;
  const std::string text = folder.add_text("pariskv_backend_text.so", "not a library");
  folder.link("/nonexistent", "pariskv_backend_link.so");
  std::filesystem::create_directory(folder.path() + "/pariskv_backend_folder.so");
  const auto registry = make_registry(folder.path());
  REQUIRE(registry->size() == first_plugin() + 3);
  CHECK(has(registry->at(first_plugin()).reason, "not a regular file"));
  CHECK(has(registry->at(first_plugin() + 1).reason, "No such file"));
  CHECK(has(registry->at(first_plugin() + 2).reason, "cannot be loaded"));
  CHECK(registry->load(text).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(registry->load("/nonexistent/x.so").status().code() == absl::StatusCode::kNotFound);
  CHECK(registry->load("").status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("registry: load takes a relative path only with a slash in it") {
  const PluginFolder folder;
  folder.add("fake");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto registry = make_registry();
  const auto bare = registry->load("pariskv_backend_fake.so");
  const auto relative = registry->load("./pariskv_backend_fake.so");
  std::filesystem::current_path(before);
  CHECK(bare.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(has(to_std(bare.status().message()), "absolute"));
  REQUIRE(relative.ok());
  CHECK(*relative == first_plugin());
  CHECK(registry->at(first_plugin()).path.front() == '/');
}

TEST_CASE("registry: a backend without a working device is listed, and says why") {
  const char* const cases[][2] = {{"no_driver", "fake: counting devices: the driver is 3 years"},
                                  {"no_device", "there is no device"},
                                  {"negative", "there is no device"}};
  for (const auto& [fault, reason] : cases) {
    CAPTURE(fault);
    const PluginFolder folder;
    const std::string path = folder.add("fake", fault);
    const auto registry = make_registry(folder.path());
    const Backend& backend = only_plugin(*registry);
    CHECK_FALSE(backend.is_usable);
    CHECK(backend.device_count == 0);
    CHECK(has(backend.reason, reason));
    const auto device = registry->open_device("fake", 0);
    CHECK(device.status().code() == absl::StatusCode::kUnavailable);
    CHECK(has(to_std(device.status().message()), reason));
    CHECK(*registry->load(path) == first_plugin());  // it is there, though of no use
  }
}

TEST_CASE("registry: a refused backend that gave its name is unavailable by that name") {
  const PluginFolder folder;
  folder.add("fake", "other_format");
  const auto device = make_registry(folder.path())->open_device("fake", 0);
  CHECK(device.status().code() == absl::StatusCode::kUnavailable);
  CHECK(has(to_std(device.status().message()), "format version 77"));
}

TEST_CASE("registry: an unknown name lists what there is, and why a library is not") {
  const PluginFolder folder;
  folder.add("fake");
  folder.add("old", "other_major");
  const auto device = make_registry(folder.path())->open_device("old", 0);
  CHECK(device.status().code() == absl::StatusCode::kNotFound);
  CHECK(has(to_std(device.status().message()),
            "no backend \"old\", there are: cpu_ref, cpu, fake, ?"));
  CHECK(has(to_std(device.status().message()), "interface 5.3"));
}

TEST_CASE("registry: auto takes the highest score that is usable, PKV_BACKEND overrides") {
  const PluginFolder folder;
  folder.add("fast", "best");
  folder.add("slow");
  const auto registry = make_registry(folder.path());
  const auto chosen = [&] {
    return std::string((*registry->open_device("auto", 0))->backend().name);
  };
  CHECK(chosen() == "fast");
  {
    const Setting backend("PKV_BACKEND", "slow");
    CHECK(chosen() == "slow");
    CHECK(std::string((*registry->open_device("fast", 0))->backend().name) == "fast");
  }
  {
    const Setting backend("PKV_BACKEND", "");
    CHECK(chosen() == "fast");
  }
  {
    const Setting backend("PKV_BACKEND", "auto");
    CHECK(chosen() == "fast");
  }
  const Setting backend("PKV_BACKEND", "none");
  const auto device = registry->open_device("auto", 0);
  CHECK(device.status().code() == absl::StatusCode::kNotFound);
  CHECK(has(to_std(device.status().message()), "PKV_BACKEND: no backend \"none\""));
}

struct Line {
  int32_t level;
  std::string text;
};
void keep_line(void* user, int32_t level, const char* text) {
  static_cast<std::vector<Line>*>(user)->push_back({level, text});
}

TEST_CASE("registry: the log says what was loaded from where; silence after the registry") {
  const PluginFolder folder;
  const std::string path = folder.add("fake");
  const std::string bad = folder.add("gone", "other_major");
  std::vector<Line> lines;
  auto registry = *Registry::create(
      {.backend_path = folder.path(), .log = keep_line, .log_user = &lines, .log_level = 2});
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].text == "backend cpu_ref (built in)");
  CHECK(lines[1].text == "backend cpu (built in)");
  CHECK(has(lines[2].text, path));
  CHECK(lines[3].level == 1);
  CHECK(has(lines[3].text, bad));
  lines.clear();
  const auto device = registry->open_device("fake", 0);
  REQUIRE(lines.size() == 1);  // the backend's own
  CHECK(lines[0].text == "fake device opened");
  registry.reset();
  lines.clear();
  (*device)->host().table()->log((*device)->host().table(), 0, "too late");
  CHECK(lines.empty());
}

}  // namespace
}  // namespace pkv
