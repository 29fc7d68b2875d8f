#include "backends/cuda/architectures.h"

#include <string>
#include <utility>

#include "doctest/doctest.h"

using pkv::cuda::has_code_for;
using pkv::cuda::write_missing_code;

TEST_CASE("cuda architectures: real code serves its generation, from its own minor version on") {
  CHECK(has_code_for("80-real", 8, 0));
  CHECK(has_code_for("80-real", 8, 6));
  CHECK(has_code_for("80-real", 8, 9));
  CHECK_FALSE(has_code_for("86-real", 8, 0));
  CHECK_FALSE(has_code_for("80-real", 9, 0));
  CHECK_FALSE(has_code_for("80-real", 7, 5));
  CHECK_FALSE(has_code_for("100-real", 12, 0));
}

TEST_CASE("cuda architectures: PTX serves every later device") {
  for (const char* built : {"80-virtual", "80"}) {
    CHECK(has_code_for(built, 8, 0));
    CHECK(has_code_for(built, 9, 0));
    CHECK(has_code_for(built, 12, 1));
    CHECK_FALSE(has_code_for(built, 7, 5));
  }
}

TEST_CASE("cuda architectures: the list that is built by default") {
  const char* built = "80-real,90-real,100-real,120";
  for (const auto& [major, minor] :
       {std::pair(8, 0), {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 0}, {12, 1}, {13, 0}}) {
    CHECK(has_code_for(built, major, minor));
  }
  for (const auto& [major, minor] : {std::pair(6, 0), {7, 0}, {7, 5}, {11, 0}}) {
    CHECK_FALSE(has_code_for(built, major, minor));
  }
}

TEST_CASE("cuda architectures: letters tie code to a device or a generation; names tell nothing") {
  CHECK(has_code_for("90a-real", 9, 0));
  CHECK(has_code_for("90a", 9, 0));
  CHECK_FALSE(has_code_for("90a", 10, 0));
  CHECK(has_code_for("100f", 10, 3));
  CHECK_FALSE(has_code_for("100f", 12, 0));
  CHECK(has_code_for("native", 7, 5));
  CHECK(has_code_for("all-major", 7, 5));
  CHECK_FALSE(has_code_for("", 9, 0));
}

TEST_CASE(
    "cuda architectures: the refusal names the device's architecture and those of the build") {
  char text[384];
  write_missing_code(text, sizeof text, "80-real,90", 1, "Quadro RTX 4000", 7, 5);
  CHECK(std::string(text) ==
        "device 1: Quadro RTX 4000 is sm_75, but this build has code for 80-real,90: build with "
        "-DCMAKE_CUDA_ARCHITECTURES=75");
}
