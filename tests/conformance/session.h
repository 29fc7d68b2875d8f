// The memory of one call on a place. Every array lies between two guards. After the call the guards
// and the inputs must be what they were; outputs are read out then. In a case's second run, on
// devices that read host memory as any other, a page without access lies behind each array.
//
//   Session session(place, 0xFF);
//   args.votes = session.out<float>("votes", count);
//   session.finish("pkv_stage_vote_sync", pkv_stage_vote_sync(place.device(), .., &args));
//   votes = session.read(args.votes, count);
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "tests/conformance/memory.h"
#include "tests/conformance/place.h"
#include "tests/conformance/tensor.h"

namespace pkv::conformance {

// Rows of different lengths.
template <class T>
using Rows = std::vector<std::vector<T>>;

class Session {
 public:
  // `fill`: the byte in guards and in outputs before the call.
  Session(const Place& place, uint8_t fill) : place_(place), fill_(fill) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Place& place() const { return place_; }
  uint8_t fill() const { return fill_; }

  // Device pointers, NULL for no elements. `in`: must be unchanged afterwards.
  template <class T>
  const T* in(const char* name, const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    return reinterpret_cast<const T*>(add(name, bytes_of(values), Use::kInput, kArray));
  }
  template <class T>
  T* in_out(const char* name, const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    return reinterpret_cast<T*>(add(name, bytes_of(values), Use::kOutput, kArray));
  }
  template <class T>
  T* out(const char* name, int64_t count) {
    if (count == 0) return nullptr;
    return reinterpret_cast<T*>(
        add(name, filled(count * int64_t{sizeof(T)}), Use::kOutput, kArray));
  }
  pkv_tensor in(const char* name, const Tensor& tensor) { return view(name, tensor, Use::kInput); }
  // In host memory that the device reads.
  pkv_tensor in_host(const char* name, const Tensor& tensor) {
    return view(name, tensor, Use::kInput, PKV_ALLOC_HOST);
  }
  // `tensor` as empty_tensor makes it, with this session's fill.
  pkv_tensor out(const char* name, const Tensor& tensor) {
    return view(name, tensor, Use::kOutput);
  }
  // Scratch of a step: may be written, but not beyond.
  void* scratch(const char* name, int64_t bytes) {
    return add(name, filled(bytes), Use::kOutput, kRecords);
  }
  // Key records: `content` may be written if `may_change`.
  uint8_t* records(const std::vector<uint8_t>& content, bool may_change) {
    return add("store", content, may_change ? Use::kOutput : Use::kInput, kRecords);
  }
  // More than there is memory for, of which the call uses a small part; its content is not checked.
  uint8_t* sparse_records(int64_t bytes);

  // Takes the present content of an input for what it must keep: for what a call of its own filled.
  void settle(const void* data);

  // Throws Skip if the call was refused as unimplemented (then nothing may have been written),
  // Failure if it failed, or wrote where it may not.
  void finish(const char* function, pkv_status status);

  // Content after finish.
  template <class T>
  std::vector<T> read(const T* data, int64_t count) const {
    const std::vector<uint8_t>& bytes = content(data);
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  // The first counts[r] elements of each row of `stride`; Failure if others were written.
  template <class T>
  Rows<T> read_rows(const char* name, const T* data, int64_t stride,
                    const std::vector<int64_t>& counts) const {
    Rows<T> rows;
    const std::vector<uint8_t>& bytes = content(data);
    for (size_t r = 0; r < counts.size(); ++r) {
      const size_t begin = r * static_cast<size_t>(stride) * sizeof(T);
      const size_t used = static_cast<size_t>(counts[r]) * sizeof(T);
      rows.emplace_back(static_cast<size_t>(counts[r]));
      if (used > 0) std::memcpy(rows[r].data(), bytes.data() + begin, used);
      check_filled(name, r, bytes, begin + used, begin + static_cast<size_t>(stride) * sizeof(T));
    }
    return rows;
  }
  // The elements of an output; Failure if a gap was written.
  Dense read(const char* name, const pkv_tensor& view, const Tensor& tensor) const;

 private:
  enum class Use { kInput, kOutput };
  // Alignment of what is no tensor: that of malloc; of records and scratch.
  static constexpr int64_t kArray = 16;
  static constexpr int64_t kRecords = 256;
  // `bytes` from `offset` of the memory on.
  struct Piece {
    int64_t offset;
    int64_t bytes;
  };
  struct Block {
    std::string name;
    Use use;
    Memory memory;
    uint8_t* data;
    std::vector<Piece> pieces;    // what is looked at; of all but wide tensors it is one
    int64_t front;                // guard bytes in front of the data and
    int64_t back;                 // behind it
    std::vector<uint8_t> before;  // of the pieces
    std::vector<uint8_t> after;   // without the guards
  };

  template <class T>
  static std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  std::vector<uint8_t> filled(int64_t bytes) const {
    return std::vector<uint8_t>(static_cast<size_t>(bytes), fill_);
  }

  uint8_t* add(const char* name, const std::vector<uint8_t>& content, Use use, int64_t alignment,
               int32_t kind = PKV_ALLOC_DEVICE);
  uint8_t* add_wide(const char* name, const Tensor& tensor, Use use);
  void put(Block block);
  pkv_tensor view(const char* name, const Tensor& tensor, Use use, int32_t kind = PKV_ALLOC_DEVICE);
  void check(Block& block, bool may_write);
  void check_filled(const char* name, size_t row, const std::vector<uint8_t>& bytes, size_t begin,
                    size_t end) const;
  const std::vector<uint8_t>& content(const void* data) const;

  const Place& place_;
  uint8_t fill_;
  std::list<Block> blocks_;
};

}  // namespace pkv::conformance
