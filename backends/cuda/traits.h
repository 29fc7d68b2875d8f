// Sizes of the kernels on CUDA devices.
#pragma once

namespace pkv::cuda {

struct Traits {
  static constexpr int kStoreThreads = 128;
  static constexpr int kQueryThreads = 256;
  static constexpr int kTableThreads = 256;
  static constexpr int kVoteThreads = 256;
  static constexpr int kVoteKeys = 4;
};

}  // namespace pkv::cuda
