#include "tools/table.h"

#include <doctest/doctest.h>

#include <limits>

namespace pkv::cli {
namespace {

TEST_CASE("table: names to the left, numbers to the right, nothing behind the last") {
  Table table({"name", "n", "note"}, 1);
  table.add({"a", "1,000", "x"});
  table.add({"longer", "2", ""});
  CHECK(table.text() ==
        "name        n  note\n"
        "a       1,000     x\n"
        "longer      2\n");
}

TEST_CASE("table: characters count, not bytes") {
  Table table({"a", "b"}, 1);
  table.add({"\xc3\xa9", "1"});
  CHECK(table.text() ==
        "a  b\n"
        "\xc3\xa9  1\n");
}

TEST_CASE("table: numbers in groups of three") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(-1234567) == "-1,234,567");
  CHECK(grouped(-123) == "-123");
  CHECK(grouped(std::numeric_limits<int64_t>::min()) == "-9,223,372,036,854,775,808");
}

TEST_CASE("table: what is not there is a dash") {
  CHECK(decimal(0.12345, 3) == "0.123");
  CHECK(decimal(std::nullopt, 3) == "-");
  CHECK(percent(0.05) == "5.00 %");
  CHECK(percent(std::nullopt) == "-");
}

}  // namespace
}  // namespace pkv::cli
