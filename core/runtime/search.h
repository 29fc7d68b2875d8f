// Where backend libraries are looked for. Absolute folders only, never the current one, and none
// that every user may write to. Not here: loading them (plugin.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pkv {

// A folder and what was found there.
struct Place {
  std::string folder;
  std::string origin;              // which setting names it
  std::string outcome;             // "searched", or why not
  std::vector<std::string> files;  // pariskv_backend_*.so by full path, ascending
};

// In the order of search: folders of `backend_path` (':' between), of PKV_BACKEND_PATH, and
// pariskv/backends beside this library.
std::vector<Place> search_places(std::string_view backend_path);

// An environment variable, "" if it is not set or the program runs with raised privileges.
std::string environment(const char* name);

// The folder of the file that this code was loaded from; "" where the system does not tell.
std::string library_folder();

}  // namespace pkv
