#include "core/runtime/search.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace pkv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "pariskv_backend_";
constexpr std::string_view kSuffix = ".so";

bool is_backend_name(std::string_view name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix);
}

// Whoever may write here decides what this process runs.
bool is_writable_by_all(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 && (info.st_mode & S_IWOTH) != 0;
}

Place search(std::string folder, std::string_view origin) {
  Place place{std::move(folder), std::string(origin), "searched", {}};
  if (!fs::path(place.folder).is_absolute()) {
    place.outcome = "not searched: not an absolute folder";
    return place;
  }
  if (is_writable_by_all(place.folder.c_str())) {
    place.outcome = "not searched: every user may write there";
    return place;
  }
  std::error_code error;
  for (fs::directory_iterator entry(place.folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_backend_name(entry->path().filename().native())) {
      place.files.push_back(entry->path().native());
    }
  }
  if (error) place.outcome = "not searched: " + error.message();
  std::sort(place.files.begin(), place.files.end());
  return place;
}

// An empty entry is none; in other paths it would mean the current folder.
void search_list(std::string_view folders, std::string_view origin, std::vector<Place>& places) {
  while (!folders.empty()) {
    const std::size_t length = std::min(folders.find(':'), folders.size());
    if (length > 0) places.push_back(search(std::string(folders.substr(0, length)), origin));
    folders.remove_prefix(std::min(length + 1, folders.size()));
  }
}

}  // namespace

std::vector<Place> search_places(std::string_view backend_path) {
  std::vector<Place> places;
  search_list(backend_path, "backend_path", places);
  search_list(environment("PKV_BACKEND_PATH"), "PKV_BACKEND_PATH", places);
  const std::string folder = library_folder();
  if (!folder.empty()) places.push_back(search(folder + "/pariskv/backends", "beside the library"));
  return places;
}

std::string environment(const char* name) {
  const char* value = secure_getenv(name);
  return value == nullptr ? "" : value;
}

// The system's own list of what is mapped where: unlike dladdr it has full paths, also when the
// library was opened, or the program started, by a relative one.
std::string library_folder() {
  const auto address = reinterpret_cast<uintptr_t>(&library_folder);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) != 2) continue;
    if (address < begin || address >= end) continue;
    const std::size_t path = line.find('/');
    return path == std::string::npos ? "" : fs::path(line.substr(path)).parent_path().native();
  }
  return "";
}

}  // namespace pkv
