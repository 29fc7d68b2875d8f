// Sizes of the kernels on the host: small, since each thread is a fiber. 64 is the least: one
// hardware group of 64 lanes, two of 32.
#pragma once

namespace pkv::gpu_host {

struct Traits {
  static constexpr int kStoreThreads = 64;
  static constexpr int kQueryThreads = 64;
  static constexpr int kTableThreads = 64;
  static constexpr int kVoteThreads = 64;
  static constexpr int kVoteKeys = 2;
  static constexpr int kEncodeThreads = 64;
  static constexpr int kEncodeBlocks = 1;
  static constexpr int kEncodeTokens = 64;
  static constexpr int kEncodeLeastTokens = 32;
  static constexpr int kFinishThreads = 64;
  static constexpr int kFitThreads = 64;
  static constexpr int kFitTokens = 32;
  static constexpr int kFitParts = 3;
};

}  // namespace pkv::gpu_host
