// The shapes that the model test runs through: one for each thing that makes a cache work another
// way. No more than 64 sequences of 4,096 tokens, 2 KV heads, head_dim 128.
#pragma once

#include <vector>

#include "tests/model/shape.h"

namespace pkv::cache_model {

std::vector<Shape> model_shapes();

}  // namespace pkv::cache_model
