#include "core/runtime/host.h"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"

#if defined(__SANITIZE_ADDRESS__)
#define PKV_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PKV_HAS_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define PKV_HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PKV_HAS_TSAN 1
#endif
#endif

namespace pkv {
namespace {

// Not the last-error text itself: a call that succeeds after all, or a refusal that only makes the
// plan take another implementation, must leave that alone. No destructor either.
thread_local char report_text[kLastErrorBytes] = "";

void report_from_backend(const pkv_host* /*host*/, const char* text) {
  if (text == nullptr) return;
  const std::size_t length = strnlen(text, sizeof(report_text) - 1);
  std::memcpy(report_text, text, length);
  report_text[length] = '\0';
  make_plain({report_text, length});
}

void log_from_backend(const pkv_host* host, int32_t level, const char* text) {
  if (host == nullptr || text == nullptr) return;
  try {
    static_cast<const Host*>(host->user)->log(static_cast<LogLevel>(level), text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): a log line that does not fit is dropped
  }
}

}  // namespace

uint32_t build_flags() {
  uint32_t flags = 0;
#if defined(PKV_HAS_ASAN)
  flags |= PKV_BUILD_ASAN;
#endif
#if defined(PKV_HAS_TSAN)
  flags |= PKV_BUILD_TSAN;
#endif
#if !defined(NDEBUG)
  flags |= PKV_BUILD_DEBUG;
#endif
  return flags;
}

void clear_report() { report_text[0] = '\0'; }

std::string_view last_report() { return report_text; }

absl::Status backend_status(pkv_status status, std::string_view who, std::string_view what) {
  if (status == PKV_OK) return absl::OkStatus();
  const std::string_view report = last_report();
  return from_pkv(status, str_cat(who, ": ", what, ": ",
                                  report.empty() ? "the backend gave no reason" : report));
}

// Hosts that no runtime uses at the moment.
class HostPool {
 public:
  Host* take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (first_ != nullptr) return std::exchange(first_, first_->next_);
    }
    return new Host();
  }
  void put_back(Host* host) {
    host->silence();
    const std::lock_guard<std::mutex> lock(mutex_);
    host->next_ = std::exchange(first_, host);
  }

 private:
  std::mutex mutex_;
  Host* first_ = nullptr;
};

namespace {
constinit HostPool pool;
static_assert(std::is_trivially_destructible_v<HostPool>, "backends may outlive static objects");
}  // namespace

Host::Host() {
  table_.struct_size = sizeof(table_);
  table_.abi_major = PKV_BACKEND_ABI_MAJOR;
  table_.abi_minor = PKV_BACKEND_ABI_MINOR;
  table_.build_flags = build_flags();
  table_.user = this;
  table_.report = report_from_backend;
  table_.log = log_from_backend;
}

std::shared_ptr<const Host> Host::create(const Log& log) {
  // If there is no memory for the counter, shared_ptr gives the host back itself.
  std::shared_ptr<Host> host(pool.take(), [](Host* unused) { pool.put_back(unused); });
  const std::unique_lock<std::shared_mutex> lock(host->mutex_);
  host->log_ = log;
  return host;
}

void Host::log(LogLevel level, std::string_view text) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  log_.write(level, text);
}

void Host::silence() const {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  log_ = Log();
}

}  // namespace pkv
