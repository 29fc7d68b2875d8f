#include "core/base/log.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace pkv {
namespace {

using Lines = std::vector<std::pair<int32_t, std::string>>;

void keep(void* user, int32_t level, const char* text) {
  static_cast<Lines*>(user)->emplace_back(level, text);
}

TEST_CASE("log: levels up to the highest one asked for reach the sink") {
  Lines lines;
  const Log log(keep, &lines, 2);
  log.write(LogLevel::kError, "e");
  log.write(LogLevel::kWarning, "w");
  log.write(LogLevel::kInfo, "i");
  log.write(LogLevel::kDebug, "d");
  CHECK(lines == Lines{{0, "e"}, {1, "w"}, {2, "i"}});
  CHECK(log.wants(LogLevel::kInfo));
  CHECK_FALSE(log.wants(LogLevel::kDebug));
}

TEST_CASE("log: silent without a sink, and with a level below 0") {
  Lines lines;
  Log().write(LogLevel::kError, "lost");
  Log(nullptr, &lines, 3).write(LogLevel::kError, "lost");
  Log(keep, &lines, -1).write(LogLevel::kError, "lost");
  CHECK(lines.empty());
  CHECK_FALSE(Log().wants(LogLevel::kError));
}

TEST_CASE("log: one text is one line") {
  Lines lines;
  const Log log(keep, &lines, 3);
  log.write(LogLevel::kInfo, "two\nlines\r\n\n");
  log.write(LogLevel::kInfo, "\n");
  CHECK(lines == Lines{{2, "two lines"}, {2, ""}});
}

}  // namespace
}  // namespace pkv
