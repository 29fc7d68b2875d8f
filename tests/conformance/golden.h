// Golden vectors: expected results that an implementation apart from the library computed
// (golden/make_golden.py), so that the reference too is held against something that is not itself.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/bench.h"
#include "tests/conformance/tensor.h"

namespace pkv::conformance {

struct GoldenFile {
  std::string name;
  std::string text;  // JSON
};

// Those inside the program.
std::vector<GoldenFile> embedded_golden();
// All .json files of a folder. Throws std::runtime_error.
std::vector<GoldenFile> read_golden(const std::string& folder);

// Cases named golden/..; throws std::runtime_error for a file that is not what it should be.
void add_golden_cases(Cases& cases, const std::vector<GoldenFile>& files);

// Element i of input `stream` of golden vectors, as make_golden.py has it: a hash of both. For f32
// a multiple of 2^-21 in [-4, 4), for f16 and bf16 of 2^-5.
std::vector<float> golden_numbers(int32_t stream, int64_t count, pkv_dtype dtype);

}  // namespace pkv::conformance
