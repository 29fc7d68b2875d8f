// Which backends there are: built-in ones and plug-ins. Not here: where plug-ins are looked for
// (search.h), the checks of one (plugin.h), the list as a text (describe.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/device.h"
#include "core/runtime/host.h"
#include "core/runtime/plugin.h"
#include "core/runtime/search.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// One line of the list. Texts stay where they are as long as the registry lives.
struct Backend {
  const pkv_backend* table = nullptr;  // NULL if refused
  bool is_usable = false;              // taken, and there is a device
  bool is_builtin = false;
  int32_t score = 0;
  int32_t device_count = 0;
  std::string name;  // "" if refused before it gave one
  std::string version;
  std::string about;
  std::string path;     // "" for built-in ones
  absl::Status status;  // OK if the library was taken, else why it was refused
  std::string reason;   // why it is not usable, "" if it is
  FileId file;
};

struct RegistryOptions {
  std::string backend_path;  // folders, ':' between
  pkv_log_fn log = nullptr;
  void* log_user = nullptr;
  int32_t log_level = 2;
};

// const members may run concurrently. Devices opened here do not need the registry to live on.
class Registry {
 public:
  // Never fails because of a backend; that is listed with its reason.
  static absl::StatusOr<std::unique_ptr<Registry>> create(const RegistryOptions& options);
  ~Registry();

  int32_t size() const { return static_cast<int32_t>(backends_.size()); }
  const Backend& at(int32_t index) const { return backends_[static_cast<size_t>(index)]; }
  const std::vector<Place>& places() const { return places_; }  // in the order of search

  // Adds one plug-in and returns its index; statuses as in pkv_runtime_backend_load. A library that
  // is refused is not listed.
  absl::StatusOr<int32_t> load(const std::string& path);

  // name: of a backend, or "auto". Statuses as in pkv_device_open.
  absl::StatusOr<std::shared_ptr<const Device>> open_device(std::string_view name,
                                                            int32_t ordinal) const;

 private:
  explicit Registry(std::shared_ptr<const Host> host) : host_(std::move(host)) {}

  void add_plugins(const Place& place);
  Backend load_file(const std::string& path, const FileId& file) const;
  Backend examine(absl::StatusOr<const pkv_backend*> table, Backend backend) const;
  int32_t append(Backend backend);
  const Backend* find(std::string_view name) const;  // NULL: not listed
  int32_t find_file(const FileId& file) const;       // -1: not listed
  std::string list_backends() const;
  absl::StatusOr<const Backend*> choose(std::string_view name) const;

  std::shared_ptr<const Host> host_;
  std::deque<Backend> backends_;
  std::vector<Place> places_;
};

}  // namespace pkv
