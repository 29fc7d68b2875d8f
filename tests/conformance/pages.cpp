#include "tests/conformance/pages.h"

#include <algorithm>
#include <map>

#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

constexpr uint8_t kGap = 0xFF;  // NaN in every floating dtype

struct Steps {
  int64_t head;
  int64_t token;
  int64_t offset;
  int64_t page;  // bytes of one
};

Steps steps_of(PageForm form, int64_t heads, int64_t page_tokens, int64_t vector_bytes,
               int64_t element_bytes) {
  if (form == PageForm::kHeads) {
    const int64_t head = page_tokens * vector_bytes + element_bytes;
    return {head, -vector_bytes, (page_tokens - 1) * vector_bytes, heads * head};
  }
  const int64_t token = heads * vector_bytes + 3 * element_bytes;
  return {vector_bytes, token, element_bytes, page_tokens * token + element_bytes};
}

}  // namespace

std::vector<int64_t> page_places(int64_t count) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t half = (count + 1) / 2;  // 0, half, 1, half + 1, .. from the end
    places.push_back(2 * (count - 1 - (i % 2 == 0 ? i / 2 : half + i / 2)));
  }
  return places;
}

pkv_pages put_pages(Session& session, const char* name, const Dense& vectors,
                    const PageSpans& spans, int64_t page_tokens, PageForm form) {
  const int64_t heads = vectors.shape[1];
  const int64_t tokens = vectors.shape[2];
  const int64_t element = dtype_bytes(vectors.dtype);
  const int64_t bytes = vectors.shape[3] * element;
  const Steps steps = steps_of(form, heads, page_tokens, bytes, element);

  std::map<std::pair<int32_t, int64_t>, int64_t> pages;  // of (sequence, page)
  int64_t last = 0;
  int32_t sequences = 0;
  for (size_t i = 0; i < spans.sequences.size(); ++i) {
    sequences = std::max(sequences, spans.sequences[i] + 1);
    for (int64_t t = 0; t < spans.lengths[i]; ++t) {
      const int64_t page = (spans.starts[i] + t) / page_tokens;
      last = std::max(last, page);
      pages.emplace(std::pair(spans.sequences[i], page), static_cast<int64_t>(pages.size()));
    }
  }
  const std::vector<int64_t> places = page_places(static_cast<int64_t>(pages.size()));
  std::vector<uint8_t> memory(static_cast<size_t>((2 * pages.size() + 1) * steps.page), kGap);
  for (size_t i = 0; i < spans.sequences.size(); ++i) {
    for (int64_t t = 0; t < spans.lengths[i]; ++t) {
      const int64_t position = spans.starts[i] + t;
      const int64_t page = pages.at({spans.sequences[i], position / page_tokens});
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t from = ((static_cast<int64_t>(i) * heads + head) * tokens + t) * bytes;
        const int64_t to = places[static_cast<size_t>(page)] * steps.page + steps.offset +
                           head * steps.head + position % page_tokens * steps.token;
        std::copy_n(vectors.bytes.begin() + from, bytes, memory.begin() + to);
      }
    }
  }
  const uint8_t* base = session.in(name, memory);
  const int64_t stride = last + 3;
  std::vector<const void*> table(static_cast<size_t>(sequences * stride + 1), nullptr);
  for (const auto& [at, page] : pages) {
    table[static_cast<size_t>(at.first * stride + at.second)] =
        base + places[static_cast<size_t>(page)] * steps.page;
  }
  pkv_pages result = {};
  result.table = session.in("page table", table);
  result.table_stride = stride;
  result.page_tokens = page_tokens;
  result.head_bytes = steps.head;
  result.token_bytes = steps.token;
  result.offset = steps.offset;
  return result;
}

pkv_tensor shape_only(const Session& session, const Tensor& tensor) {
  pkv_tensor view = {};
  view.device_type = session.place().device_type();
  view.device_id = session.place().device_id();
  view.ndim = static_cast<int32_t>(tensor.shape.size());
  view.dtype = tensor.dtype;
  view.shape = tensor.shape.data();
  return view;
}

}  // namespace pkv::conformance
