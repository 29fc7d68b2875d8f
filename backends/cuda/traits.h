// Sizes of the kernels on CUDA devices.
#pragma once

namespace pkv::cuda {

struct Traits {
  static constexpr int kStoreThreads = 128;
  static constexpr int kQueryThreads = 256;
  static constexpr int kPrepareThreads = 512;
  static constexpr int kTableThreads = 256;
  static constexpr int kVoteThreads = 256;
  static constexpr int kVoteKeys = 4;
  // Keys of a step, in all, up to which the vote counts digits on the way.
  static constexpr int64_t kVoteCounts = 2 << 20;
  static constexpr int kFetchThreads = 256;
  static constexpr int kAttendThreads = 128;
  // Blocks of one kind (dense, rows, candidates, samples) that a launch aims at: 132 to 148
  // multiprocessors, some of each kind on each.
  static constexpr int kAttendBlocks = 528;
  // What is worth a block of its own.
  static constexpr int kAttendTokens = 64;
  static constexpr int kAttendRows = 16;
  static constexpr int kAttendCandidates = 1024;
  static constexpr int kAttendSamples = 64;
  static constexpr int kTailTile = 1024;  // a multiple of 32
  static constexpr int kMergeThreads = 128;
  static constexpr int kBestThreads = 512;
  static constexpr int kBestShort = 8192;  // values of a row that one block takes alone
  static constexpr int kBestTile = 4096;   // values of a block at least
  static constexpr int kBestBlocks = 384;  // of all rows, but one of each at least
  static constexpr int kEstimateQueryThreads = 128;
  static constexpr int kRerankThreads = 256;
  static constexpr int kRerankTile = 128;             // keys of a block at a time
  static constexpr int kRerankBlocks = 256;           // of a row at most
  static constexpr int kRerankQueryBytes = 24 << 10;  // of heads that a block keeps at a time
  static constexpr int kScoreThreads = 256;
  static constexpr int kScoreBlocks = 128;  // of a row at most
  static constexpr int kShortHits = 7168;   // candidates of a row that one block scores
  static constexpr int kHitThreads = 512;
  static constexpr int kHitTile = 2048;  // hits that one block sorts
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
