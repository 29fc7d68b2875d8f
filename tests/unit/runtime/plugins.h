// A folder of backend libraries for one test, and the environment it needs.
#pragma once

#include <string>

#include "core/runtime/builtin.h"
#include "core/runtime/registry.h"
#include "tests/common/folder.h"

namespace pkv::test {

// An empty folder of its own that goes with the object.
class PluginFolder {
 public:
  std::string path() const { return folder_.path().string(); }
  // Copies the fake backend here: add("fast") or, with a fault (fake_backend.cpp), add("fast",
  // "other_major"). The full path.
  std::string add(const std::string& name, const std::string& fault = "") const;
  // A library without the entry symbol, a file with this text, a symbolic link.
  std::string add_without_entry(const std::string& name) const;
  std::string add_text(const std::string& file, const std::string& text) const;
  std::string link(const std::string& target, const std::string& file) const;

 private:
  Folder folder_;
};

// A variable of the environment, as long as the object lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// A registry that searches `folders` and nothing that the environment names.
std::unique_ptr<Registry> make_registry(const std::string& folders = "");
// Where plug-ins begin in a registry.
inline int32_t first_plugin() { return static_cast<int32_t>(builtins().size()); }
// The only entry that is not built in.
const Backend& only_plugin(const Registry& registry);

}  // namespace pkv::test
