// What the host offers to backends: a place for error texts, and the caller's log sink.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// PKV_BUILD_* of this build.
uint32_t build_flags();

// Forgets the text that a backend last reported on this thread.
void clear_report();
// What it reported since; "" if nothing. Valid until the thread's next report.
std::string_view last_report();

// Status of a call into a backend. PKV_OK is OK; else the text is "<who>: <what>: <report>". A
// number that is no status becomes INTERNAL and is named.
absl::Status backend_status(pkv_status status, std::string_view who, std::string_view what);

// The services given to the backends of one runtime. A backend may keep the pkv_host for as long as
// the process lives: its memory is used again by a later runtime, never freed. Only the sink goes.
class Host {
 public:
  static std::shared_ptr<const Host> create(const Log& log);

  const pkv_host* table() const { return &table_; }
  // Texts of our own, to the same sink. Holds off silence() while the sink is in use.
  void log(LogLevel level, std::string_view text) const;
  // Once this returns, the sink is not called any more. Not from within the sink.
  void silence() const;

 private:
  friend class HostPool;
  Host();
  ~Host() = default;

  pkv_host table_{};
  mutable std::shared_mutex mutex_;
  mutable Log log_;
  Host* next_ = nullptr;  // in the pool
};

}  // namespace pkv
