// Sizes of the kernels on AMD devices, a table per architecture. None was tuned on hardware: they
// follow from data sheets (processors, lanes, registers, 64 KiB of LDS) and from what
// docs/hip_kernels.txt says of the code. A table holds what differs from the one it is based on.
#pragma once

#include <cstdint>

namespace pkv::hip {

// What all have in common.
struct CommonTraits {
  static constexpr int kStoreThreads = 128;
  static constexpr int kQueryThreads = 256;
  static constexpr int kPrepareThreads = 512;
  static constexpr int kTableThreads = 256;
  static constexpr int kVoteThreads = 256;
  static constexpr int kVoteKeys = 4;
  static constexpr int64_t kVoteCounts = 2 << 20;
  static constexpr int kFetchThreads = 256;
  static constexpr int kAttendThreads = 128;
  static constexpr int kAttendBlocks = 416;
  static constexpr int kAttendTokens = 64;
  static constexpr int kAttendRows = 16;
  static constexpr int kAttendCandidates = 1024;
  static constexpr int kAttendSamples = 64;
  static constexpr int kTailTile = 1024;
  static constexpr int kMergeThreads = 128;
  static constexpr int kBestThreads = 512;
  static constexpr int kBestShort = 8192;
  static constexpr int kBestTile = 4096;
  static constexpr int kBestBlocks = 384;
  static constexpr int kEstimateQueryThreads = 128;
  static constexpr int kRerankThreads = 256;
  static constexpr int kRerankTile = 128;
  static constexpr int kRerankBlocks = 256;
  static constexpr int kRerankQueryBytes = 24 << 10;
  static constexpr int kScoreThreads = 256;
  static constexpr int kScoreBlocks = 128;
  static constexpr int kShortHits = 7168;
  static constexpr int kHitThreads = 512;
  static constexpr int kHitTile = 2048;
  static constexpr int kEncodeThreads = 128;
  static constexpr int kEncodeBlocks = 2;
  static constexpr int kEncodeTokens = 1024;
  static constexpr int kEncodeLeastTokens = 64;
  static constexpr int kFinishThreads = 64;
  static constexpr int kFitThreads = 128;
  static constexpr int kFitTokens = 256;
  static constexpr int kFitParts = 128;
};

namespace gfx90a {  // MI210, MI250: 104 processors of 64 lanes on each half
struct Traits : CommonTraits {
  static constexpr int kStoreThreads = 256;
  static constexpr int kMergeThreads = 256;
};
}  // namespace gfx90a

namespace gfx942 {  // MI300X has 304 processors of 64 lanes, MI300A 228 and one memory
struct Traits : gfx90a::Traits {
  static constexpr int kAttendBlocks = 1216;
  static constexpr int kBestBlocks = 768;
  static constexpr int kRerankBlocks = 608;
  static constexpr int kScoreBlocks = 304;
  static constexpr int kFitParts = 304;
};
}  // namespace gfx942

namespace gfx1030 {  // RX 6800 to 6950: 60 to 80 processors of 32 lanes
struct Traits : CommonTraits {
  static constexpr int kAttendBlocks = 320;
  static constexpr int kRerankBlocks = 160;
};
}  // namespace gfx1030

namespace gfx1100 {  // RX 7900: 84 to 96 processors of 32 lanes
struct Traits : gfx1030::Traits {
  static constexpr int kAttendBlocks = 384;
  static constexpr int kRerankBlocks = 192;
};
}  // namespace gfx1100

namespace gfx1201 {  // RX 9070: 56 to 64 processors of 32 lanes
struct Traits : gfx1030::Traits {
  static constexpr int kAttendBlocks = 256;
};
}  // namespace gfx1201

}  // namespace pkv::hip
