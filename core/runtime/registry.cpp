#include "core/runtime/registry.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/runtime/builtin.h"

namespace pkv {
namespace {

const char* text_or_empty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

absl::StatusOr<std::unique_ptr<Registry>> Registry::create(const RegistryOptions& options) {
  const Log log(options.log, options.log_user, options.log_level);
  std::unique_ptr<Registry> registry(new Registry(Host::create(log)));
  for (const Builtin& builtin : builtins()) {
    Backend backend;
    backend.is_builtin = true;
    registry->append(registry->examine(query_backend(builtin.query, builtin.name, *registry->host_),
                                       std::move(backend)));
  }
  registry->places_ = search_places(options.backend_path);
  for (const Place& place : registry->places_) registry->add_plugins(place);
  return registry;
}

Registry::~Registry() { host_->silence(); }

void Registry::add_plugins(const Place& place) {
  host_->log(
      place.outcome == "searched" ? LogLevel::kDebug : LogLevel::kInfo,
      str_cat("backends in ", quote(place.folder, 4096), " (", place.origin, "): ", place.outcome));
  for (const std::string& path : place.files) {
    const absl::StatusOr<FileId> file = identify_file(path);
    if (!file.ok()) {
      Backend backend;
      backend.path = path;
      append(examine(file.status(), std::move(backend)));
    } else if (const int32_t index = find_file(*file); index >= 0) {
      host_->log(LogLevel::kInfo,
                 str_cat(quote(path, 4096), " is the same file as ", quote(at(index).path, 4096)));
    } else {
      append(load_file(path, *file));
    }
  }
}

Backend Registry::load_file(const std::string& path, const FileId& file) const {
  Backend backend;
  backend.path = path;
  backend.file = file;
  return examine(load_plugin(path, *host_), std::move(backend));
}

// Fills in what is known of a library whose table, or refusal, is there.
Backend Registry::examine(absl::StatusOr<const pkv_backend*> table, Backend backend) const {
  backend.status = table.status();
  if (table.ok()) {
    backend.name = text_or_empty((*table)->name);
    backend.version = text_or_empty((*table)->version);
    backend.about = text_or_empty((*table)->about);
    backend.score = (*table)->score;
    const std::string who = backend.is_builtin ? backend.name : backend.path;
    backend.status = check_table(**table, who);
    const Backend* other = find(backend.name);
    if (backend.status.ok() && other != nullptr && other->table != nullptr) {
      backend.status = absl::AlreadyExistsError(
          str_cat(who, ": the name ", backend.name, " is taken by ",
                  other->is_builtin ? "a built-in backend" : quote(other->path, 4096)));
    }
  }
  if (!backend.status.ok()) {
    backend.reason = to_std(backend.status.message());
    return backend;
  }

  backend.table = *table;
  clear_report();
  const absl::Status counted =
      backend_status(backend.table->device_count(host_->table(), &backend.device_count),
                     backend.name, "counting devices");
  if (!counted.ok()) {
    backend.reason = to_std(counted.message());
  } else if (backend.device_count <= 0) {
    backend.reason = str_cat(backend.name, ": there is no device");
  }
  backend.is_usable = backend.reason.empty();
  if (!backend.is_usable) backend.device_count = 0;
  return backend;
}

int32_t Registry::append(Backend backend) {
  const std::string origin = backend.is_builtin ? "built in" : quote(backend.path, 4096);
  if (!backend.status.ok()) {
    host_->log(LogLevel::kWarning, str_cat("backend refused: ", backend.reason));
  } else if (!backend.is_usable) {
    host_->log(LogLevel::kInfo, str_cat("backend not usable: ", backend.reason));
  } else {
    host_->log(LogLevel::kInfo, str_cat("backend ", backend.name, " (", origin, ")"));
  }
  backends_.push_back(std::move(backend));
  return size() - 1;
}

absl::StatusOr<int32_t> Registry::load(const std::string& path) {
  if (path.find('/') == std::string::npos) {
    return absl::InvalidArgumentError(
        str_cat("path ", quote(path, 4096),
                ", accepted: an absolute path, or a relative one with a / in it"));
  }
  std::error_code error;
  const std::string full_path = std::filesystem::absolute(path, error).native();
  if (error) return absl::InvalidArgumentError(str_cat(quote(path, 4096), ": ", error.message()));

  PKV_ASSIGN_OR_RETURN(const FileId file, identify_file(full_path));
  if (const int32_t index = find_file(file); index >= 0) {
    PKV_RETURN_IF_ERROR(at(index).status);
    return index;
  }
  Backend backend = load_file(full_path, file);
  PKV_RETURN_IF_ERROR(backend.status);
  return append(std::move(backend));
}

absl::StatusOr<std::shared_ptr<const Device>> Registry::open_device(std::string_view name,
                                                                    int32_t ordinal) const {
  PKV_ASSIGN_OR_RETURN(const Backend* backend, choose(name));
  return Device::open(*backend->table, host_, ordinal);
}

absl::StatusOr<const Backend*> Registry::choose(std::string_view name) const {
  const std::string forced = name == "auto" ? environment("PKV_BACKEND") : "";
  const bool is_forced = !forced.empty() && forced != "auto";
  if (is_forced) name = forced;
  if (name != "auto") {
    const std::string_view origin = is_forced ? "PKV_BACKEND: " : "";
    const Backend* backend = find(name);
    if (backend == nullptr) {
      return absl::NotFoundError(
          str_cat(origin, "no backend ", quote(name), ", there are: ", list_backends()));
    }
    if (backend->is_usable) return backend;
    return absl::UnavailableError(
        str_cat(origin, "backend ", quote(name), " is not usable: ", backend->reason));
  }
  const Backend* best = nullptr;
  for (const Backend& backend : backends_) {
    if (backend.is_usable && (best == nullptr || backend.score > best->score)) best = &backend;
  }
  if (best != nullptr) return best;
  return absl::UnavailableError(str_cat("no backend is usable, there are: ", list_backends()));
}

// The one that holds the name; if none does, one that was refused under it.
const Backend* Registry::find(std::string_view name) const {
  const Backend* refused = nullptr;
  for (const Backend& backend : backends_) {
    if (backend.name != name || name.empty()) continue;
    if (backend.table != nullptr) return &backend;
    refused = &backend;
  }
  return refused;
}

int32_t Registry::find_file(const FileId& file) const {
  const auto it = std::find_if(backends_.begin(), backends_.end(), [&](const Backend& backend) {
    return backend.file.is_set() && backend.file == file;
  });
  return it == backends_.end() ? -1 : static_cast<int32_t>(it - backends_.begin());
}

std::string Registry::list_backends() const {
  std::vector<std::string> lines;
  for (const Backend& backend : backends_) {
    lines.push_back(backend.is_usable ? backend.name
                                      : str_cat(backend.name.empty() ? "?" : backend.name,
                                                " (not usable: ", backend.reason, ")"));
  }
  return lines.empty() ? "none" : absl::StrJoin(lines, ", ");
}

}  // namespace pkv
