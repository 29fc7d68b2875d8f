#include "core/base/log.h"

#include <string>

#include "core/base/text.h"

namespace pkv {

void Log::write(LogLevel level, std::string_view text) const {
  if (!wants(level)) return;
  const auto is_break = [](char c) { return c == '\n' || c == '\r'; };
  while (!text.empty() && is_break(text.back())) text.remove_suffix(1);
  std::string line(text);
  for (char& c : line) {
    if (is_break(c)) c = ' ';
  }
  make_plain(line);
  sink_(user_, static_cast<int32_t>(level), line.c_str());
}

}  // namespace pkv
