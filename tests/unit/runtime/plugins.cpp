#include "tests/unit/runtime/plugins.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace pkv::test {

namespace fs = std::filesystem;

std::string PluginFolder::add(const std::string& name, const std::string& fault) const {
  const std::string path =
      folder_.file("pariskv_backend_" + name + (fault.empty() ? "" : "." + fault) + ".so");
  fs::copy_file(PKV_TEST_FAKE_BACKEND, path);
  return path;
}

std::string PluginFolder::add_without_entry(const std::string& name) const {
  std::string path = folder_.file("pariskv_backend_" + name + ".so");
  fs::copy_file(PKV_TEST_NO_ENTRY, path);
  return path;
}

std::string PluginFolder::add_text(const std::string& file, const std::string& text) const {
  std::string path = folder_.file(file);
  std::ofstream(path) << text;
  return path;
}

std::string PluginFolder::link(const std::string& target, const std::string& file) const {
  std::string path = folder_.file(file);
  fs::create_symlink(target, path);
  return path;
}

Setting::Setting(const char* name, const std::string& value) : name_(name) {
  REQUIRE(std::getenv(name) == nullptr);
  setenv(name, value.c_str(), 1);
}

Setting::~Setting() { unsetenv(name_); }

std::unique_ptr<Registry> make_registry(const std::string& folders) {
  auto registry = Registry::create({.backend_path = folders});
  REQUIRE(registry.ok());
  return *std::move(registry);
}

const Backend& only_plugin(const Registry& registry) {
  const Backend* plugin = nullptr;
  for (int32_t i = 0; i < registry.size(); ++i) {
    if (registry.at(i).is_builtin) continue;
    REQUIRE(plugin == nullptr);
    plugin = &registry.at(i);
  }
  REQUIRE(plugin != nullptr);
  return *plugin;
}

}  // namespace pkv::test
