// A line on stderr that says how far the work is: only on a terminal, a few times a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pkv::cli {

class Progress {
 public:
  Progress(std::string what, int64_t total);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t steps = 1);

 private:
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  bool is_shown_ = false;
  bool is_terminal_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace pkv::cli
