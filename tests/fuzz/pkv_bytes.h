// The bytes of a .pkv file with checksums that fit (docs/format.md, section 2), so that what lies
// behind them is reached. That a checksum that does not fit is refused is tested byte by byte in
// tests/unit/index/file_damage_test.cpp and tests/unit/cache/file_test.cpp.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {

std::vector<uint8_t> mended(Input input);

}  // namespace pkv::fuzz
