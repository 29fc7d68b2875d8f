#include "tools/browser.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <vector>

#include "fmt/ranges.h"
#include "tools/command_line.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/status.h"

extern char** environ;

namespace pkv::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBrowsers[] = {"chromium", "chromium-browser", "google-chrome",
                                     "google-chrome-stable", "microsoft-edge"};
constexpr auto kPatience = std::chrono::seconds(120);

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// A folder of its own for the page, the browser's profile and the result; removed with all in it.
class Workplace {
 public:
  absl::Status open() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "pariskv-report-XXXXXX").string();
    if (error || ::mkdtemp(pattern.data()) == nullptr) {
      return system_error("--pdf: no temporary folder: {}",
                          error ? error.message() : system_text(errno));
    }
    path_ = pattern;
    return absl::OkStatus();
  }
  ~Workplace() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Workplace() = default;
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A program in a process group of its own, which does not outlive this object.
class Child {
 public:
  ~Child() {
    if (id_ <= 0) return;
    ::kill(-id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  absl::Status start(std::vector<std::string> words, const std::string& log) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&files, 2, log.c_str(), O_WRONLY | O_CREAT, 0600);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    const int error =
        ::posix_spawn(&id_, arguments.front(), &files, &attributes, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
    if (error == 0) return absl::OkStatus();
    id_ = 0;
    return system_error("--pdf: {} cannot be started: {}", words.front(), system_text(error));
  }

  // The exit status, or that it took too long.
  absl::StatusOr<int> wait() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      int status = 0;
      const pid_t done = ::waitpid(id_, &status, WNOHANG);
      if (done == id_) {
        ::kill(-id_, SIGKILL);  // helpers that it may have left
        id_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      CLI_RETURN_IF_ERROR(check_interrupt());
      if (std::chrono::steady_clock::now() > end) {
        return system_error("--pdf: the browser did not end within {} s", kPatience.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  pid_t id_ = 0;
};

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t begin = text.rfind('\n');
  return begin == std::string::npos ? text : text.substr(begin + 1);
}

}  // namespace

absl::StatusOr<std::string> find_browser() {
  if (const char* named = std::getenv("PARISKV_BROWSER"); named != nullptr && *named != 0) {
    if (is_program(named)) return std::string(named);
    return system_error("--pdf: PARISKV_BROWSER={}: is no program", named);
  }
  const char* folders = std::getenv("PATH");
  for (const char* name : kBrowsers) {
    std::string rest = folders == nullptr ? "" : folders;
    for (size_t end = 0; !rest.empty(); rest.erase(0, end + (end < rest.size() ? 1 : 0))) {
      end = std::min(rest.find(':'), rest.size());
      const fs::path path = fs::path(rest.substr(0, end)) / name;
      if (path.is_absolute() && is_program(path)) return path.string();
    }
  }
  return system_error("--pdf: no browser on PATH: looked for {}; PARISKV_BROWSER names another one",
                      fmt::join(kBrowsers, ", "));
}

absl::StatusOr<std::string> print_pdf(const std::string& browser, const std::string& html) {
  Workplace place;
  CLI_RETURN_IF_ERROR(place.open());
  OutputOptions page;
  page.path = place.file("page.html");
  CLI_RETURN_IF_ERROR(write_output(page, html));
  std::vector<std::string> words = {browser,
                                    "--headless",
                                    "--disable-gpu",
                                    "--no-first-run",
                                    "--disable-background-networking",
                                    "--no-pdf-header-footer",
                                    "--user-data-dir=" + place.file("profile"),
                                    "--print-to-pdf=" + place.file("page.pdf"),
                                    "file://" + page.path};
  // Its sandbox does not start for root.
  if (::geteuid() == 0) words.insert(words.begin() + 1, "--no-sandbox");
  Child child;
  CLI_RETURN_IF_ERROR(child.start(words, place.file("log")));
  CLI_ASSIGN_OR_RETURN(const int code, child.wait());
  std::string pdf = content_of(place.file("page.pdf"));
  if (code == 0 && pdf.rfind("%PDF-", 0) == 0) return pdf;
  return system_error("--pdf: {} ended with code {} and no PDF: {}", browser, code,
                      last_line(content_of(place.file("log"))));
}

}  // namespace pkv::cli
