// One backend library: found by path, loaded, asked for its table, and checked before any slot of
// it is called. Libraries are never unloaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/host.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// Tells files apart whatever path or symbolic link led to them. A default one equals no file.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool is_set() const { return inode != 0; }
  friend bool operator==(const FileId&, const FileId&) = default;
};

// NOT_FOUND: no such file. INVALID_ARGUMENT: not a regular file.
absl::StatusOr<FileId> identify_file(const std::string& path);

// Loads the library and asks it for its table, of which nothing is checked but the interface
// version: the rest is for check_table. INVALID_ARGUMENT: not a library, or the entry symbol is
// missing. FAILED_PRECONDITION: another interface version, or the library refuses by itself.
absl::StatusOr<const pkv_backend*> load_plugin(const std::string& path, const Host& host);

// The same for an entry function that is there already. `who` names the library in texts.
absl::StatusOr<const pkv_backend*> query_backend(pkv_backend_query_fn query, std::string_view who,
                                                 const Host& host);

// FAILED_PRECONDITION: another format version, or sanitizers that do not match ours.
// INVALID_ARGUMENT: the name is not one, or a slot is missing.
absl::Status check_table(const pkv_backend& table, std::string_view who);

}  // namespace pkv
