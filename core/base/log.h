// The caller's log sink. Silent without one; levels as in pkv_log_fn.
// Not from run calls. Never an error's only trace: that is the returned status.
#pragma once

#include <cstdint>
#include <string_view>

#include "pariskv/pariskv_types.h"

namespace pkv {

enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// A value: copies write to the same sink. May be used by several threads if the sink may.
class Log {
 public:
  Log() = default;
  // Passes levels up to `max_level` on; a negative one, or no sink, passes nothing.
  Log(pkv_log_fn sink, void* user, int32_t max_level)
      : sink_(sink), user_(user), max_level_(max_level) {}

  // Whether a text of this level arrives anywhere: to skip building it.
  bool wants(LogLevel level) const {
    return sink_ != nullptr && static_cast<int32_t>(level) <= max_level_;
  }

  // One line: line breaks become spaces, those at the end are dropped.
  void write(LogLevel level, std::string_view text) const;

 private:
  pkv_log_fn sink_ = nullptr;
  void* user_ = nullptr;
  int32_t max_level_ = -1;
};

}  // namespace pkv
