// Which of a row's samples are candidates. docs/algorithm.md, sections 6.4 and 8.
#pragma once

#include <cstdint>

#include "core/format/samples.h"

namespace pkv::cpu {

// places[i] = where sample i stands among the candidates (ascending), -1 if it is none.
void find_sample_places(const format::Samples& samples, const int32_t* candidates, int32_t count,
                        int32_t* places);

}  // namespace pkv::cpu
