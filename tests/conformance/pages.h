// K/V of tokens in pages, and the pages of a store: in any order, some shared, with NaN or the
// session's fill between them, and no page where none is needed. pariskv_backend.h, pkv_pages.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/conformance/session.h"

namespace pkv::conformance {

// How the vectors of a page lie: keys and values differ, so that one's strides do not serve both.
enum class PageForm {
  kHeads,  // [h, tokens]; tokens run backwards
  kTokens  // [tokens, h], a gap behind each token
};

// Tokens [0, lengths[i]) of entry i, at positions starts[i] .. of sequence sequences[i].
struct PageSpans {
  std::vector<int32_t> sequences;
  std::vector<int64_t> starts;
  std::vector<int64_t> lengths;
};

// `vectors` [entries, h, t, width].
pkv_pages put_pages(Session& session, const char* name, const Dense& vectors,
                    const PageSpans& spans, int64_t page_tokens, PageForm form);
// A tensor that says shape and dtype only; points into `tensor`.
pkv_tensor shape_only(const Session& session, const Tensor& tensor);

// Places of `count` pages: not in order, and apart from one another.
std::vector<int64_t> page_places(int64_t count);

}  // namespace pkv::conformance
