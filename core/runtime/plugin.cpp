#include "core/runtime/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"

namespace pkv {
namespace {

constexpr std::size_t kMaxNameLength = 63;
constexpr uint32_t kSanitizers = PKV_BUILD_ASAN | PKV_BUILD_TSAN;

struct Slot {
  const char* name;
  std::size_t offset;
};
#define PKV_SLOT(field) \
  { #field, offsetof(pkv_backend, field) }
constexpr Slot kSlots[] = {
    PKV_SLOT(device_count), PKV_SLOT(device_info),     PKV_SLOT(device_open),
    PKV_SLOT(device_close), PKV_SLOT(memory_alloc),    PKV_SLOT(memory_free),
    PKV_SLOT(memory_copy),  PKV_SLOT(memory_fill),     PKV_SLOT(stream_create),
    PKV_SLOT(stream_wrap),  PKV_SLOT(stream_destroy),  PKV_SLOT(stream_sync),
    PKV_SLOT(event_create), PKV_SLOT(event_destroy),   PKV_SLOT(event_record),
    PKV_SLOT(event_wait),   PKV_SLOT(store_row_bytes), PKV_SLOT(store_import),
    PKV_SLOT(store_export), PKV_SLOT(fit.supports),    PKV_SLOT(fit.scratch_bytes),
    PKV_SLOT(fit.run),      PKV_SLOT(encode.supports), PKV_SLOT(encode.scratch_bytes),
    PKV_SLOT(encode.run),   PKV_SLOT(vote.supports),   PKV_SLOT(vote.scratch_bytes),
    PKV_SLOT(vote.run),     PKV_SLOT(select.supports), PKV_SLOT(select.scratch_bytes),
    PKV_SLOT(select.run),   PKV_SLOT(rerank.supports), PKV_SLOT(rerank.scratch_bytes),
    PKV_SLOT(rerank.run),   PKV_SLOT(fetch.supports),  PKV_SLOT(fetch.scratch_bytes),
    PKV_SLOT(fetch.run),    PKV_SLOT(attend.supports), PKV_SLOT(attend.scratch_bytes),
    PKV_SLOT(attend.run),
};
#undef PKV_SLOT
static_assert(sizeof(kSlots) / sizeof(Slot) * sizeof(void (*)()) ==
                  offsetof(pkv_backend, step) - offsetof(pkv_backend, device_count),
              "every function pointer of the table up to the optional ones is listed");

// Optional slots that come together or not at all.
#define PKV_SLOT(field) \
  { #field, offsetof(pkv_backend, field) }
constexpr Slot kStepSlots[] = {PKV_SLOT(step.supports), PKV_SLOT(step.scratch_bytes),
                               PKV_SLOT(step.run)};
constexpr Slot kCaptureSlots[] = {PKV_SLOT(memory_words), PKV_SLOT(stream_capturing),
                                  PKV_SLOT(place), PKV_SLOT(advance)};
#undef PKV_SLOT

bool is_missing(const pkv_backend& table, const Slot& slot) {
  void (*function)() = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + slot.offset, sizeof(function));
  return function == nullptr;
}

absl::Status check_group(const pkv_backend& table, std::span<const Slot> group,
                         std::string_view who) {
  const Slot* missing = nullptr;
  const Slot* given = nullptr;
  for (const Slot& slot : group) (is_missing(table, slot) ? missing : given) = &slot;
  if (missing == nullptr || given == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(who, ": slot ", missing->name, " is NULL, but ",
                                            given->name, " is not: all of them or none"));
}

bool is_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameLength && name != "auto" &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

std::string sanitizer_names(uint32_t flags) {
  if ((flags & kSanitizers) == 0) return "none";
  return str_cat((flags & PKV_BUILD_ASAN) != 0 ? "address" : "",
                 (flags & kSanitizers) == kSanitizers ? " and " : "",
                 (flags & PKV_BUILD_TSAN) != 0 ? "thread" : "");
}

// Of the table only what every version has: struct_size and the two version numbers.
absl::Status check_version(const pkv_backend& table, std::string_view who) {
  if (table.abi_major != PKV_BACKEND_ABI_MAJOR) {
    return absl::FailedPreconditionError(
        str_cat(who, ": built for backend interface ", table.abi_major, ".", table.abi_minor,
                ", this library has ", PKV_BACKEND_ABI_MAJOR, ".", PKV_BACKEND_ABI_MINOR));
  }
  if (table.struct_size < sizeof(pkv_backend)) {
    return absl::FailedPreconditionError(
        str_cat(who, ": its table has ", table.struct_size, " bytes, interface ",
                PKV_BACKEND_ABI_MAJOR, ".", PKV_BACKEND_ABI_MINOR, " needs ", sizeof(pkv_backend)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FileId> identify_file(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) {
    const int error = errno;
    const std::string text =
        str_cat(quote(path, 4096), ": ", std::generic_category().message(error));
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                               : absl::InvalidArgumentError(text);
  }
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(str_cat(quote(path, 4096), ": not a regular file"));
  }
  return FileId{file.st_dev, file.st_ino};
}

absl::Status check_table(const pkv_backend& table, std::string_view who) {
  if (table.format_version != static_cast<uint32_t>(format::kFormatVersion)) {
    return absl::FailedPreconditionError(str_cat(who, ": writes key records of format version ",
                                                 table.format_version, ", this library version ",
                                                 format::kFormatVersion));
  }
  if (((table.build_flags ^ build_flags()) & kSanitizers) != 0) {
    return absl::FailedPreconditionError(
        str_cat(who, ": built with sanitizers: ", sanitizer_names(table.build_flags),
                "; this library: ", sanitizer_names(build_flags()), "; they must match"));
  }
  if (table.name == nullptr || !is_name(table.name)) {
    return absl::InvalidArgumentError(
        str_cat(who, ": name ", table.name == nullptr ? "NULL" : quote(table.name),
                ", accepted: 1 to ", kMaxNameLength, " of a-z, 0-9, _ and -, but not \"auto\""));
  }
  for (const Slot& slot : kSlots) {
    if (is_missing(table, slot)) {
      return absl::InvalidArgumentError(str_cat(who, ": slot ", slot.name, " is NULL"));
    }
  }
  PKV_RETURN_IF_ERROR(check_group(table, kStepSlots, who));
  return check_group(table, kCaptureSlots, who);
}

absl::StatusOr<const pkv_backend*> query_backend(pkv_backend_query_fn query, std::string_view who,
                                                 const Host& host) {
  constexpr uint32_t kOffered = uint32_t{PKV_BACKEND_ABI_MAJOR} << 16 | PKV_BACKEND_ABI_MINOR;
  clear_report();
  const pkv_backend* table = query(kOffered, host.table());
  if (table == nullptr) {
    const std::string_view reason = last_report();
    return absl::FailedPreconditionError(
        str_cat(who, ": refuses to work with interface ", PKV_BACKEND_ABI_MAJOR, ".",
                PKV_BACKEND_ABI_MINOR, ": ", reason.empty() ? "no reason given" : reason));
  }
  PKV_RETURN_IF_ERROR(check_version(*table, who));
  return table;
}

absl::StatusOr<const pkv_backend*> load_plugin(const std::string& path, const Host& host) {
  // Never closed: threads, thread-locals and atexit handlers of a driver may point into it for
  // good.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::InvalidArgumentError(
        str_cat(path, ": cannot be loaded: ", reason == nullptr ? "no reason given" : reason));
  }
  void* symbol = dlsym(library, PKV_BACKEND_QUERY_SYMBOL);
  if (symbol == nullptr) {
    return absl::InvalidArgumentError(
        str_cat(path, ": no backend, it lacks the symbol ", PKV_BACKEND_QUERY_SYMBOL));
  }
  return query_backend(reinterpret_cast<pkv_backend_query_fn>(symbol), path, host);
}

}  // namespace pkv
