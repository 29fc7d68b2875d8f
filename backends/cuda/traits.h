// Sizes of the kernels on CUDA devices.
#pragma once

namespace pkv::cuda {

struct Traits {
  static constexpr int kStoreThreads = 128;
  static constexpr int kQueryThreads = 256;
  static constexpr int kTableThreads = 256;
  static constexpr int kVoteThreads = 256;
  static constexpr int kVoteKeys = 4;
  static constexpr int kEncodeThreads = 128;
  static constexpr int kEncodeBlocks = 5;        // resident at least: up to 96 registers
  static constexpr int kEncodeTokens = 1024;     // of a tile, at most
  static constexpr int kEncodeLeastTokens = 64;  // and at least
  static constexpr int kFinishThreads = 64;
  static constexpr int kFitThreads = 128;
  static constexpr int kFitTokens = 256;
  static constexpr int kFitParts = 128;
};

}  // namespace pkv::cuda
