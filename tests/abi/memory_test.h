// Failing allocations, one by one. Shared by the sources of pkv_memory_test.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pariskv/pariskv.h"

constexpr int kHeads = 2;
constexpr int kSamples = 512;  // tail_samples of the default profile
constexpr int kTokens = 64;
constexpr int kDim = 32;
constexpr int kK = 8;

// Makes allocation number i of `call` fail, i = 1, 2, .. until the call needs no more. `call` makes
// an object or nothing; `undo` destroys what it made.
void exhaust(
    const char* name, const std::function<pkv_status()>& call,
    const std::function<void()>& undo = [] {});

pkv_tensor view(std::vector<float>& data, const std::vector<int64_t>& shape);
std::vector<float> noise(int count);

// Every call of pariskv_stages.h, on host memory.
void test_stages(pkv_device* device, pkv_stream* stream, const pkv_geometry& geometry);
