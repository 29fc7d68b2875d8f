// Backends with one fault each: cpu_ref's table with one slot wrapped. The test of the runner is
// that it finds every one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pariskv/pariskv_backend.h"

namespace pkv::mutants {

struct Mutant {
  const char* name;
  void (*apply)(pkv_backend& table);
};

std::span<const Mutant> encode_mutants();
std::span<const Mutant> vote_mutants();
std::span<const Mutant> select_mutants();
std::span<const Mutant> rerank_mutants();
std::span<const Mutant> fetch_mutants();
std::span<const Mutant> attend_mutants();

// The table without a fault.
const pkv_backend& sound();

// A run slot that does its work on `change`d arguments.
template <auto kSlots, auto kChange, class Args>
pkv_status run_changed(pkv_backend_device* device, pkv_backend_stream* stream, const Args* args,
                       void* scratch) {
  Args changed = *args;
  kChange(changed);
  return (sound().*kSlots).run(device, stream, &changed, scratch);
}

// A run slot that does its work and then spoils the result.
template <auto kSlots, auto kSpoil, class Args>
pkv_status run_spoiled(pkv_backend_device* device, pkv_backend_stream* stream, const Args* args,
                       void* scratch) {
  const pkv_status status = (sound().*kSlots).run(device, stream, args, scratch);
  if (status == PKV_OK) kSpoil(*args);
  return status;
}

// As if the tensor were dense, and began at its data pointer.
inline void forget_strides(pkv_tensor& tensor) { tensor.strides = nullptr; }

// Set 0 for every entry.
inline void forget_sets(pkv_codec_params& codec) { codec.set_of = nullptr; }

// A table of pages [sequences, stride] in which each page but a sequence's first is the one before:
// boundaries are a page late. `late` holds it.
template <class Page>
Page* const* late_pages(Page* const* table, int64_t stride, const int32_t* sequences, int32_t batch,
                        std::vector<Page*>& late) {
  if (table == nullptr) return nullptr;
  late.assign(1, nullptr);
  for (int32_t i = 0; i < batch; ++i) {
    const auto end = static_cast<std::size_t>((sequences[i] + 1) * stride);
    if (late.size() < end) late.resize(end);
  }
  for (int32_t i = 0; i < batch; ++i) {
    for (int64_t p = 0; p < stride; ++p) {
      const int64_t entry = sequences[i] * stride + p;
      late[static_cast<std::size_t>(entry)] = table[p == 0 ? entry : entry - 1];
    }
  }
  return late.data();
}

// The next number, in the order of its bits.
template <class Number, class Bits>
void next(Number& number) {
  Bits bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  ++bits;
  __builtin_memcpy(&number, &bits, sizeof bits);
}

}  // namespace pkv::mutants
