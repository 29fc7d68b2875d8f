// Scratch of a step: pieces are booked by name when planning, and handed out from one pointer when
// running. What lives through the whole call lies side by side; what a single stage needs lies on
// top of that of the other stages, since they run one after the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/check.h"
#include "core/base/checked.h"
#include "core/base/text.h"

namespace pkv {

// The pieces of all calls; each ledger books those of its own.
enum class Piece {
  kLengths,     // [b] int64, of sequences that are no neighbours
  kVotes,       // [b * h, votes_stride] float
  kCandidates,  // [b * h, c] int32, this and the next as in pkv_hits, where the caller has none
  kCandidateCounts,  // [b * h] int32
  kScores,           // [b * h, k] float
  kPositions,        // [b * h, k] int32
  kCounts,           // [b * h] int32
  kEstimates,        // [b, hq, c] float
  kRestLse,          // [b, hq] float
  kSampleEstimates,  // [b, hq, tail_samples] float
  kRowKeys,          // [b * h, k, d] of any dtype
  kRowValues,        // [b * h, k, dv] of any dtype
  kPartLengths,      // [PKV_MAX_PARTS, b] int64
  kNumbers,          // what each query token of a cache sees (core/cache/step_numbers.h)
  kStage,            // what the backend asks for, the most of any stage
};
inline constexpr std::array<std::string_view, 15> kPieceNames = {
    "lengths",   "votes",      "candidates",   "candidate_counts", "scores",
    "positions", "counts",     "estimates",    "rest_lse",         "sample_estimates",
    "row_keys",  "row_values", "part_lengths", "numbers",          "stage"};

// From one row of votes to the next: rows begin at multiples of 256 bytes.
constexpr int64_t votes_stride(int64_t tokens) { return round_up(tokens, 64); }

class ScratchLedger {
 public:
  // RESOURCE_EXHAUSTED where the sum passes 2^63.
  absl::Status book(Piece piece, int64_t bytes) {
    Entry& entry = at(piece);
    PKV_DCHECK(entry.bytes == 0);
    entry.offset = bytes_;
    entry.bytes = bytes;
    return grow(piece, bytes);
  }
  // The piece becomes as large as the largest of several bookings. Nothing is booked in between.
  absl::Status book_shared(Piece piece, int64_t bytes) {
    Entry& entry = at(piece);
    if (entry.bytes == 0) entry.offset = bytes_;
    if (bytes <= entry.bytes) return absl::OkStatus();
    bytes_ = entry.offset;
    entry.bytes = bytes;
    return grow(piece, bytes);
  }

  int64_t bytes() const { return bytes_; }
  int64_t bytes(Piece piece) const { return entries_[static_cast<std::size_t>(piece)].bytes; }

  // `base`: bytes() of memory aligned to kAlignment. NULL for a piece of 0 bytes.
  template <class Value>
  Value* get(void* base, Piece piece) const {
    const Entry& entry = entries_[static_cast<std::size_t>(piece)];
    if (entry.bytes == 0) return nullptr;
    return reinterpret_cast<Value*>(static_cast<std::byte*>(base) + entry.offset);
  }
  // A caller's pointer that is NULL becomes the piece.
  template <class Value>
  void supply(void* base, Piece piece, Value*& pointer) const {
    if (pointer == nullptr) pointer = get<Value>(base, piece);
  }

 private:
  struct Entry {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  Entry& at(Piece piece) { return entries_[static_cast<std::size_t>(piece)]; }
  absl::Status grow(Piece piece, int64_t bytes) {
    const auto end = checked_add(bytes_, bytes);
    const auto padded = end ? checked_round_up(*end, kAlignment) : std::nullopt;
    if (!padded) {
      return absl::ResourceExhaustedError(str_cat("scratch passes 2^63 bytes at ",
                                                  kPieceNames[static_cast<std::size_t>(piece)],
                                                  " with ", bytes, " bytes"));
    }
    bytes_ = *padded;
    return absl::OkStatus();
  }

  std::array<Entry, kPieceNames.size()> entries_{};
  int64_t bytes_ = 0;
};

}  // namespace pkv
