#include "tests/conformance/isolation.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/memory.h"

namespace pkv::conformance {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kMostTimeouts = 3;  // then the cases that are left are not run
constexpr int kPollMilliseconds = 100;

// What a child says: one JSON object a line.
class Mouth {
 public:
  explicit Mouth(int pipe) : pipe_(pipe) {}

  void say(const Json& message) const {
    const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t n = write(pipe_, line.data() + sent, line.size() - sent);
      if (n < 0 && errno != EINTR) std::_Exit(1);  // nobody listens
      sent += n < 0 ? 0 : static_cast<size_t>(n);
    }
  }

 private:
  int pipe_;
};

void run_child(const Options& options, const std::vector<const Case*>& cases, size_t first,
               const Mouth& mouth) {
  Observer observer;
  observer.opened = [&](const Opened& o) {
    mouth.say({{"opened", {o.backend, o.version, o.device, o.reference, o.paths}}});
  };
  observer.started = [&](const Case&) { mouth.say({{"started", true}}); };
  observer.finished = [&](const Result& result) {
    mouth.say({{"outcome", result.outcome},
               {"text", result.text},
               {"seconds", result.seconds},
               {"paths", result.paths}});
  };
  try {
    run_here(options, cases, first, observer);
    mouth.say({{"done", true}});
  } catch (const Unavailable& error) {
    mouth.say({{"unavailable", error.what()}});
  } catch (const std::exception& error) {
    mouth.say({{"unavailable", fmt::format("{}: {}", options.backend, error.what())}});
  }
}

// What a process says when it dies of a guard page: memory that it shares with this one.
class LastWords {
 public:
  LastWords()
      : text_(static_cast<char*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (text_ == MAP_FAILED) throw std::runtime_error("no shared memory");
  }
  ~LastWords() { munmap(text_, kBytes); }
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

  void watch() const { watch_guards(text_, kBytes); }
  std::string text() const { return {text_, strnlen(text_, kBytes)}; }

 private:
  static constexpr int64_t kBytes = 256;
  char* text_;
};

// A child process, and the messages it has sent.
class Child {
 public:
  Child(const Options& options, const std::vector<const Case*>& cases, size_t first)
      : limit_(options.time_limit) {
    int ends[2] = {};
    std::fflush(nullptr);  // or the child would print it again
    if (pipe2(ends, O_CLOEXEC) != 0 || (process_ = fork()) < 0) {
      throw std::runtime_error(fmt::format("no child process: {}", std::strerror(errno)));
    }
    if (process_ == 0) {
#if defined(__linux__)
      prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
      close(ends[0]);
      last_words_.watch();
      dup2(STDERR_FILENO, STDOUT_FILENO);  // what a backend prints is no part of the report
      run_child(options, cases, first, Mouth(ends[1]));
      std::exit(0);
    }
    close(ends[1]);
    pipe_ = ends[0];
    fcntl(pipe_, F_SETFL, O_NONBLOCK);
    reset_clock();
  }
  ~Child() {
    if (!status_) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    close(pipe_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // None when the process has ended or its time is up.
  std::optional<Json> next() {
    for (;;) {
      const size_t end = text_.find('\n');
      if (end != std::string::npos) {
        Json message = Json::parse(text_.substr(0, end));
        text_.erase(0, end + 1);
        reset_clock();
        return message;
      }
      if (status_ || !wait_for_more()) return std::nullopt;
    }
  }

  bool is_out_of_time() const { return is_out_of_time_; }
  bool ended_well() const { return status_ == 0; }
  // How it ended: "crashed: signal 11 (Segmentation fault)".
  std::string ending() const {
    if (is_out_of_time_) return fmt::format("no end within {} s (--time-limit)", limit_);
    if (WIFSIGNALED(*status_)) {
      const int signal = WTERMSIG(*status_);
      const std::string words = last_words_.text();
      return fmt::format("crashed: signal {} ({}){}{}", signal, strsignal(signal),
                         words.empty() ? "" : ": ", words);
    }
    return fmt::format("ended the process, exit code {}", WEXITSTATUS(*status_));
  }

 private:
  void reset_clock() { since_ = Clock::now(); }

  // False when the time is up.
  bool wait_for_more() {
    // The process may have left others behind that keep the pipe open: its end is asked for too,
    // and before the last look into the pipe.
    int status = 0;
    const bool has_ended = waitpid(process_, &status, WNOHANG) == process_;
    pollfd event = {pipe_, POLLIN, 0};
    if (!has_ended) poll(&event, 1, kPollMilliseconds);
    char bytes[4096];
    ssize_t n = 0;
    bool is_closed = false;
    while ((n = read(pipe_, bytes, sizeof bytes)) > 0) text_.append(bytes, static_cast<size_t>(n));
    is_closed = n == 0;
    if (has_ended) {
      status_ = status;
    } else if (is_closed) {  // and ending, or it closed what is not its own
      usleep(1000);
    }
    is_out_of_time_ =
        !has_ended && limit_ > 0 && Clock::now() - since_ > std::chrono::seconds(limit_);
    return !is_out_of_time_;
  }

  LastWords last_words_;
  int64_t limit_;
  pid_t process_ = 0;
  int pipe_ = -1;
  std::optional<int> status_;
  bool is_out_of_time_ = false;
  Clock::time_point since_;
  std::string text_;
};

class Apart {
 public:
  Apart(const Options& options, const std::vector<const Case*>& cases, const Observer& observer)
      : options_(options), cases_(cases), observer_(observer) {}

  void run() {
    do {
      Child child(options_, cases_, done_);
      has_begun_ = false;
      is_done_ = false;
      while (const std::optional<Json> message = child.next()) hear(*message);
      judge(child);
    } while (done_ < cases_.size());
  }

 private:
  void hear(const Json& message) {
    if (message.contains("opened") && !is_open_) {
      is_open_ = true;
      const auto& words = message["opened"];
      observer_.opened({words[0], words[1], words[2], words[3], words[4]});
    } else if (message.contains("started")) {
      has_begun_ = true;
      started_ = Clock::now();
      observer_.started(*cases_[done_]);
    } else if (message.contains("outcome")) {
      has_begun_ = false;
      add({cases_[done_], message["outcome"], message["text"], message["seconds"],
           message["paths"]});
    } else if (message.contains("unavailable")) {
      if (!is_open_) throw Unavailable(message["unavailable"].get<std::string>());
      leave_rest(message["unavailable"]);
    } else if (message.contains("done")) {
      is_done_ = true;
    }
  }

  // What the end of a child means.
  void judge(const Child& child) {
    if (is_done_ && child.ended_well()) return;
    if (!is_open_) {
      throw Unavailable(
          fmt::format("{}: {}, while it was opened", options_.backend, child.ending()));
    }
    if (done_ == cases_.size()) {
      static const Case behind = {"process/end", Verdict::kExact, nullptr};
      add({&behind, Outcome::kFailed, child.ending() + ", behind the last case", 0.0});
      return;
    }
    const std::chrono::duration<double> elapsed = Clock::now() - started_;
    add({cases_[done_], Outcome::kFailed,
         child.ending() + (has_begun_ ? "" : ", before the case began"),
         has_begun_ ? elapsed.count() : 0.0});
    timeouts_ += child.is_out_of_time() ? 1 : 0;
    if (timeouts_ >= kMostTimeouts) {
      leave_rest(fmt::format("{} cases did not end in time", timeouts_));
    }
  }

  void leave_rest(const std::string& reason) {
    while (done_ < cases_.size()) {
      add({cases_[done_], Outcome::kFailed, "not run: " + reason, 0.0});
    }
  }

  void add(const Result& result) {
    ++done_;
    observer_.finished(result);
  }

  const Options& options_;
  const std::vector<const Case*>& cases_;
  const Observer& observer_;
  size_t done_ = 0;  // cases that have a result
  Clock::time_point started_;
  bool is_open_ = false;
  bool is_done_ = false;
  bool has_begun_ = false;
  int timeouts_ = 0;
};

}  // namespace

void run_apart(const Options& options, const std::vector<const Case*>& cases,
               const Observer& observer) {
  Apart(options, cases, observer).run();
}

}  // namespace pkv::conformance
