// A store of backend gpu-host, in one piece or in pages, whose memory was taken backwards.
#pragma once

#include <vector>

#include "tests/unit/gpu/gpu_host.h"

namespace pkv::gpu_host {

inline constexpr int64_t kPageTokens = 64;

struct GpuStore {
  GpuStore(Backend& backend, const pkv_geometry& geometry, int32_t sequences, int64_t tokens,
           bool in_pages) {
    store.capacity = in_pages ? kPageTokens : tokens;
    backend.expect(
        table()->store_row_bytes(backend.device(), &geometry, store.capacity, &store.row_bytes));
    const int64_t piece = geometry.kv_heads * store.row_bytes;
    if (!in_pages) {
      store.base = backend.allocate(sequences * piece);
      return;
    }
    store.pages_stride = (tokens + kPageTokens - 1) / kPageTokens;
    pages.resize(static_cast<size_t>(sequences * store.pages_stride));
    for (size_t i = 0; i < pages.size(); ++i) {
      pages[pages.size() - 1 - i] = backend.allocate(piece);
    }
    store.pages = pages.data();
  }

  pkv_store store = {};
  std::vector<void*> pages;
};

}  // namespace pkv::gpu_host
