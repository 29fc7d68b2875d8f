// What fetch must satisfy. docs/algorithm.md, section 7: the very bytes, whatever they mean. What
// is expected is copied here, without the reference.
#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/fetch_stage.h"
#include "tests/conformance/half.h"
#include "tests/conformance/random_cases.h"

namespace pkv::conformance {
namespace {

// Fields that a table leaves out keep these values.
struct FetchShape {
  int64_t d = 128;  // 0: no keys
  int64_t dv = 0;   // 0: no values
  int32_t h = 1;
  int32_t b = 1;
  int64_t n = 50;
  int32_t k = 20;
  pkv_dtype dtype = PKV_DTYPE_BF16;
  Layout source = Layout::kStrided;
  Layout target = Layout::kStrided;
  int64_t page_tokens = 0;
  int32_t query_tokens = 1;        // entries that name the same sequence
  const char* positions = "some";  // some: with fillers | all: each row once | none | last | same
};

// Every bit pattern: NaN payloads, -0, subnormals.
std::optional<Dense> random_bytes(Random& random, const FetchShape& rows, int64_t width) {
  if (width == 0) return std::nullopt;
  Dense dense = {rows.dtype, {rows.b + 1, rows.h, rows.n, width}, {}};
  dense.bytes.resize(static_cast<size_t>(count_of(dense.shape) * dtype_bytes(rows.dtype)));
  for (uint8_t& byte : dense.bytes) byte = static_cast<uint8_t>(random.next() >> 56);
  return dense;
}

int32_t position_of(Random& random, std::string_view kind, int64_t slot, int64_t n) {
  if (kind == "none" || n == 0) return -1;
  if (kind == "last") return static_cast<int32_t>(n - 1 - slot % 2 * (n - 1));
  if (kind == "same") return static_cast<int32_t>(n / 2);
  if (kind == "all") return slot < n ? static_cast<int32_t>((slot * 7 + 3) % n) : -1;
  return random.below(4) == 0 ? -1 : static_cast<int32_t>(random.below(n));
}

FetchInput make_input(Random& random, const FetchShape& rows) {
  FetchInput input;
  input.heads = rows.h;
  input.k = rows.k;
  input.target_layout = rows.target;
  input.page_tokens = rows.page_tokens;
  const int64_t lengths[] = {rows.n, rows.n / 2, rows.n - 1, rows.n, 1, 0, rows.n - 2};
  for (int32_t i = 0; i < rows.b; ++i) {
    input.batch.sequences.push_back(rows.b - i / rows.query_tokens);  // 0 is in no entry
    input.batch.lengths.push_back(std::clamp<int64_t>(lengths[i % 7], 0, rows.n));
    for (int64_t slot = 0; slot < int64_t{rows.h} * rows.k; ++slot) {
      input.positions.push_back(
          position_of(random, rows.positions, slot % rows.k, input.batch.lengths.back()));
    }
  }
  input.batch.max_length = rows.n;
  return input;
}

// Row `position` of the entry's sequence, or zero bytes.
Dense expected_rows(const std::optional<Dense>& source, const FetchInput& input) {
  Dense rows;
  if (!source) return rows;
  rows = {source->dtype, {input.batch.size(), input.heads, input.k, source->shape[3]}, {}};
  const int64_t bytes = source->shape[3] * dtype_bytes(source->dtype);
  for (size_t slot = 0; slot < input.positions.size(); ++slot) {
    const auto row = static_cast<int64_t>(slot) / input.k;
    const int64_t sequence = input.batch.sequences[static_cast<size_t>(row / input.heads)];
    const int64_t from = (sequence * input.heads + row % input.heads) * source->shape[2];
    const int32_t position = input.positions[slot];
    if (position < 0) {
      rows.bytes.insert(rows.bytes.end(), static_cast<size_t>(bytes), uint8_t{0});
    } else {
      const auto first = source->bytes.begin() + (from + position) * bytes;
      rows.bytes.insert(rows.bytes.end(), first, first + bytes);
    }
  }
  return rows;
}

void check_fetch(const Bench& bench, const FetchShape& rows, const std::string& name) {
  Random random = bench.random(name);
  FetchInput input = make_input(random, rows);
  std::optional<Dense> keys = random_bytes(random, rows, rows.d);
  std::optional<Dense> values = random_bytes(random, rows, rows.dv);
  // Gathered again: shared memory shows other rows than it was laid out from.
  if (keys) {
    input.keys = lay_out(*keys, rows.source);
    keys = gather(*input.keys, input.keys->memory);
  }
  if (values) {
    input.values = lay_out(*values, rows.source);
    values = gather(*input.values, input.values->memory);
  }
  const Fetched got =
      bench.result([&](const Place& place, uint8_t fill) { return run_fetch(place, fill, input); });
  expect_bits("keys", expected_rows(keys, input), got.keys);
  expect_bits("values", expected_rows(values, input), got.values);
}

void add(Cases& cases, const char* family, const FetchShape& rows) {
  std::string text =
      fmt::format("d{}_dv{}_n{}_k{}_{}", rows.d, rows.dv, rows.n, rows.k, dtype_name(rows.dtype));
  if (rows.h != 1) text += fmt::format("_h{}", rows.h);
  if (rows.source != Layout::kStrided) text += fmt::format("_from_{}", layout_name(rows.source));
  if (rows.target != Layout::kStrided) text += fmt::format("_to_{}", layout_name(rows.target));
  if (rows.page_tokens != 0) text += fmt::format("_pages{}", rows.page_tokens);
  if (rows.query_tokens != 1) text += fmt::format("_tokens{}", rows.query_tokens);
  if (rows.positions != std::string_view("some")) text += fmt::format("_{}", rows.positions);
  const std::string name = fmt::format("fetch/{}/{}/b{}", family, text, rows.b);
  cases.push_back({name, Verdict::kExact,
                   [rows, name](const Bench& bench) { check_fetch(bench, rows, name); }});
}

}  // namespace

void add_random_fetch(Cases& cases, Random& random) {
  FetchShape rows;
  rows.d = 8 * random.below(73);
  rows.dv = rows.d == 0 || chance(random, 2) ? 8 * (1 + random.below(72)) : 0;
  rows.h = static_cast<int32_t>(1 + random.below(4));
  rows.b = static_cast<int32_t>(1 + random.below(4));
  rows.n = random.below(200);
  rows.k = random_k(random, rows.n);
  rows.dtype = one_of(random, {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_U8,
                               PKV_DTYPE_I32, PKV_DTYPE_I64});
  rows.source =
      one_of(random, {Layout::kStrided, Layout::kDense, Layout::kPadded, Layout::kOffset});
  rows.target = one_of(random, {Layout::kStrided, Layout::kDense, Layout::kPadded});
  if (chance(random, 3)) rows.page_tokens = 1 + random.below(40);
  rows.query_tokens = static_cast<int32_t>(1 + random.below(2));
  rows.positions = one_of(random, {"some", "all", "none", "last", "same"});
  add(cases, "any", rows);
}

void add_fetch_cases(Cases& cases) {
  for (const pkv_dtype dtype :
       {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_U8, PKV_DTYPE_I32, PKV_DTYPE_I64}) {
    add(cases, "dtypes", {.d = 128, .dv = 72, .h = 2, .b = 3, .dtype = dtype});
    add(cases, "dtypes",
        {.d = 8,
         .dv = 8,
         .h = 2,
         .b = 3,
         .dtype = dtype,
         .source = Layout::kPadded,
         .target = Layout::kPadded});
  }
  for (const int32_t d : kDims) {
    add(cases, "widths", {.d = d, .h = 2, .b = 3, .dtype = PKV_DTYPE_F32});
    add(cases, "widths", {.d = 0, .dv = d, .h = 2, .b = 3});
  }
  // Rows whose bytes are no multiple of 16, nor of 4.
  for (const int64_t width : {1, 3, 5, 7, 33}) {
    add(cases, "widths", {.d = width, .dv = width + 1, .b = 3, .dtype = PKV_DTYPE_U8});
    add(cases, "widths", {.d = width, .dv = width + 1, .b = 3, .dtype = PKV_DTYPE_F16});
  }
  add(cases, "widths", {.d = 192, .dv = 128, .h = 2, .b = 3, .n = 300, .k = 50});
  for (const Layout source : kLayouts) {
    add(cases, "layouts", {.d = 64, .dv = 24, .h = 2, .b = 3, .source = source});
  }
  for (const Layout target : {Layout::kDense, Layout::kTokenMajor, Layout::kPadded, Layout::kOffset,
                              Layout::kWideTokens, Layout::kWideRows}) {
    add(cases, "layouts", {.d = 64, .dv = 24, .h = 2, .b = 3, .target = target});
    add(cases, "layouts",
        {.d = 72, .dv = 72, .h = 2, .b = 3, .source = Layout::kReversed, .target = target});
  }
  for (const char* positions : {"all", "none", "last", "same"}) {
    for (const int64_t n : {1, 33, 257}) {
      add(cases, "positions",
          {.d = 64, .dv = 64, .h = 2, .b = 3, .n = n, .k = 40, .positions = positions});
    }
  }
  for (const int32_t k : {1, 31, 32, 33, 65, 1025}) {
    add(cases, "counts", {.d = 64, .dv = 64, .h = 2, .b = 3, .k = k});
  }
  add(cases, "counts", {.d = 64, .dv = 64, .h = 2, .b = 3, .n = 0, .k = 5});
  for (const int64_t page : {1, 5, 16, 64, 1000}) {
    for (const int64_t n : {1, 16, 17, 257}) {
      add(cases, "pages",
          {.d = 64, .dv = 24, .h = 2, .b = 3, .n = n, .k = 40, .page_tokens = page});
    }
    add(cases, "pages", {.d = 33, .h = 3, .b = 3, .dtype = PKV_DTYPE_U8, .page_tokens = page});
    add(cases, "pages",
        {.d = 128, .dv = 8, .h = 2, .b = 7, .page_tokens = page, .query_tokens = 3});
  }
  add(cases, "tokens", {.d = 64, .dv = 64, .h = 2, .b = 7, .query_tokens = 3});
  add(cases, "batches", {.d = 64, .dv = 64});
  for (const int32_t b : kBatches) add(cases, "batches", {.d = 64, .dv = 64, .h = 2, .b = b});
  add(cases, "batches", {.d = 128, .dv = 128, .h = 16, .b = 3, .n = 40, .k = 24});
  // More rows than a grid has along its short axis, 65,535.
  add(cases, "batches", {.d = 8, .dv = 8, .h = 7, .b = 10000, .n = 4, .k = 2});
}

}  // namespace pkv::conformance
