// Sizes of the kernels on the host: small, since each thread is a fiber. 64 is the least: one
// hardware group of 64 lanes, two of 32.
#pragma once

namespace pkv::gpu_host {

struct Traits {
  static constexpr int kStoreThreads = 64;
  static constexpr int kQueryThreads = 64;
  static constexpr int kPrepareThreads = 64;
  static constexpr int kTableThreads = 64;
  static constexpr int kVoteThreads = 64;
  static constexpr int kVoteKeys = 2;
  static constexpr int64_t kVoteCounts = 2000;
  static constexpr int kFetchThreads = 64;
  static constexpr int kAttendThreads = 64;
  static constexpr int kAttendBlocks = 24;
  static constexpr int kAttendTokens = 16;
  static constexpr int kAttendRows = 8;
  static constexpr int kAttendCandidates = 40;
  static constexpr int kAttendSamples = 24;
  static constexpr int kTailTile = 32;
  static constexpr int kMergeThreads = 64;
  static constexpr int kBestThreads = 128;
  static constexpr int kBestShort = 192;
  static constexpr int kBestTile = 64;
  static constexpr int kBestBlocks = 16;
  static constexpr int kEstimateQueryThreads = 64;
  static constexpr int kRerankThreads = 64;
  static constexpr int kRerankTile = 64;
  static constexpr int kRerankBlocks = 4;
  static constexpr int kRerankQueryBytes = 4096;
  static constexpr int kScoreThreads = 64;
  static constexpr int kScoreBlocks = 4;
  static constexpr int kShortHits = 160;
  static constexpr int kHitThreads = 64;
  static constexpr int kHitTile = 128;
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
