// Text in aligned columns: the first ones to the left, numbers to the right.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace pkv::cli {

class Table {
 public:
  // `left` columns are aligned to the left.
  explicit Table(std::vector<std::string> header, size_t left = 1);
  void add(std::vector<std::string> cells);  // as many as the header
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  size_t left_;
};

// "12,345"
std::string grouped(int64_t value);
// With so many digits behind the point; "-" for nothing.
std::string decimal(std::optional<double> value, int digits);
// "5.00 %"
std::string percent(std::optional<double> share);

}  // namespace pkv::cli
