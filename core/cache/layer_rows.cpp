// Where the rows of a layer lie, and how tokens get there.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/finite.h"
#include "core/cache/layer.h"

namespace pkv {
namespace {

struct Rows {
  std::byte* data;
  int64_t head_stride;
  int64_t token_stride;
};

// Rows of `heads` KV heads as [1, h, t, width].
class RowTensor {
 public:
  RowTensor(const Device& device, const Rows& rows, int64_t heads, int64_t tokens, int64_t width,
            pkv_dtype dtype)
      : shape_{1, heads, tokens, width}, strides_{0, rows.head_stride, rows.token_stride, 1} {
    tensor_.data = rows.data;
    tensor_.device_type = device.info().device_type;
    tensor_.device_id = device.info().device_id;
    tensor_.ndim = 4;
    tensor_.dtype = dtype;
    tensor_.shape = shape_;
    tensor_.strides = strides_;
  }
  RowTensor(const RowTensor&) = delete;
  RowTensor& operator=(const RowTensor&) = delete;
  const pkv_tensor& tensor() const { return tensor_; }

 private:
  int64_t shape_[4];
  int64_t strides_[4];
  pkv_tensor tensor_{};
};

Rows keys_of(const RowRun& run) { return {run.keys, run.key_head_stride, run.key_token_stride}; }
Rows values_of(const RowRun& run) {
  return {run.values, run.value_head_stride, run.value_token_stride};
}

}  // namespace

// Of a sequence of so many tokens, the first page of rows that are on the device too: those behind
// the zone that the schedule encodes.
int64_t Layer::first_recent_page(int64_t tokens) const {
  const int64_t zone = zone_of(shape_.rules, tokens);
  return (zone >= first_fit(shape_.rules) ? zone : 0) / shape_.desc.page_tokens;
}

void Layer::set_near_page(int32_t sequence, int64_t page) {
  if (!near_pages_) return;
  const SequenceState& state = states_[index(sequence)];
  const auto i = static_cast<std::size_t>(page);
  const PageRef& copy = state.recent[i];
  near_pages_->set(pools_.words, sequence, page, copy ? copy.data() : state.rows[i].data());
}

// A page of rows has become the sequence's own: its copy too, in `fresh`, or there is none.
absl::Status Layer::own_recent(const Stream& stream, int32_t sequence, int64_t page,
                               PageRef fresh) {
  if (!near_pages_) return absl::OkStatus();
  PageRef& copy = states_[index(sequence)].recent[static_cast<std::size_t>(page)];
  const PageRef before = std::exchange(copy, PageRef());
  set_near_page(sequence, page);
  if (!before || !fresh) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(stream.copy(fresh.data(), before.data(), pools_.recent->page_bytes()));
  copy = std::move(fresh);
  set_near_page(sequence, page);
  return absl::OkStatus();
}

// Pages before this one need no copies any more.
void Layer::drop_recent(int32_t sequence, int64_t pages) {
  if (!near_pages_) return;
  SequenceState& state = states_[index(sequence)];
  const auto end = std::min(static_cast<std::size_t>(pages), state.recent.size());
  for (; state.first_recent < end; ++state.first_recent) {
    const std::size_t page = state.first_recent;
    if (!state.recent[page]) continue;
    near_pages_->set(pools_.words, sequence, static_cast<int64_t>(page), state.rows[page].data());
    state.recent[page] = PageRef();
  }
}

RowRun Layer::near_run_at(const SequenceState& state, int64_t position, int64_t most) const {
  RowRun run = run_at(state, position, most);
  const int64_t behind = position - shape_.desc.sink;
  if (pool_ || behind < 0) return run;
  const auto page = static_cast<std::size_t>(behind / shape_.desc.page_tokens);
  const PageRef& copy = state.recent[page];
  if (!copy) return run;
  const auto* row_page = static_cast<const std::byte*>(state.rows[page].data());
  const auto move = [&](const std::byte* at) {
    return static_cast<std::byte*>(copy.data()) + (at - row_page);
  };
  run.keys = move(run.keys);
  if (run.values != nullptr) run.values = move(run.values);
  return run;
}

RowRun Layer::run_at(const SequenceState& state, int64_t position, int64_t most) const {
  const int64_t bytes = shape_.element_bytes;
  if (pool_) {
    const int64_t page = state.blocks[static_cast<std::size_t>(position / pool_->page_tokens())];
    const int64_t token = position % pool_->page_tokens();
    RowRun run{};
    const auto at = [&](const TensorView& view) {
      return static_cast<std::byte*>(view.origin()) +
             view.element_offset(page, 0, token, 0) * bytes;
    };
    run.keys = at(pool_->keys);
    run.key_head_stride = pool_->keys.stride(1);
    run.key_token_stride = pool_->keys.stride(2);
    if (pool_->values) {
      run.values = at(*pool_->values);
      run.value_head_stride = pool_->values->stride(1);
      run.value_token_stride = pool_->values->stride(2);
    }
    run.tokens = std::min(most, pool_->page_tokens() - token);
    return run;
  }
  const int64_t sink = shape_.desc.sink;
  const bool is_sink = position < sink;
  const int64_t page_tokens = is_sink ? sink : shape_.desc.page_tokens;
  const int64_t behind = is_sink ? position : position - sink;
  const PageRef& page =
      is_sink ? state.sink : state.rows[static_cast<std::size_t>(behind / page_tokens)];
  const int64_t token = behind % page_tokens;
  RowRun run{};
  run.keys = static_cast<std::byte*>(page.data()) + token * shape_.token_bytes();
  run.key_token_stride = run.value_token_stride = shape_.token_elements();
  run.key_head_stride = run.value_head_stride = page_tokens * shape_.token_elements();
  if (shape_.value_elements > 0) run.values = run.keys + shape_.key_elements * bytes;
  run.tokens = std::min(most, page_tokens - token);
  return run;
}

// Positions of a whole page, or of one token, are at hand for all heads; others go head by head.
absl::Status Layer::copy_run(const Stream& stream, const RowRun& from, const RowRun& to) const {
  const Device& device = *shape_.device;
  const int64_t tokens = to.tokens;
  const bool is_page = tokens == shape_.desc.page_tokens;
  const bool is_whole = is_page || tokens == 1;
  const int64_t heads = shape_.geometry.kv_heads;
  const HostNumbers& numbers = *pools_.numbers;
  pkv_fetch_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = static_cast<int32_t>(is_whole ? heads : 1);
  args.batch.batch = 1;
  args.batch.sequences = numbers.zeros();
  args.batch.max_length = tokens;
  args.k = static_cast<int32_t>(tokens);
  args.positions = is_page       ? numbers.page_rows()
                   : tokens == 1 ? numbers.zeros()
                                 : numbers.identity();
  PKV_ASSIGN_OR_RETURN(args.batch.lengths, pools_.numbers->put(stream, pools_.words, {&tokens, 1}));
  PKV_RETURN_IF_ERROR(pools_.words.flush(stream));
  const auto shifted = [&](Rows rows, int64_t head) {
    if (rows.data != nullptr) rows.data += head * rows.head_stride * shape_.element_bytes;
    return rows;
  };
  for (int64_t head = 0; head < (is_whole ? 1 : heads); ++head) {
    const auto tensor = [&](const Rows& rows, int64_t width) {
      return RowTensor(device, shifted(rows, head), args.kv_heads, tokens, width,
                       shape_.desc.dtype);
    };
    const RowTensor from_keys = tensor(keys_of(from), shape_.key_elements);
    const RowTensor to_keys = tensor(keys_of(to), shape_.key_elements);
    const RowTensor from_values = tensor(values_of(from), shape_.value_elements);
    const RowTensor to_values = tensor(values_of(to), shape_.value_elements);
    if (to.keys != nullptr) {
      args.source_keys = from_keys.tensor();
      args.keys = to_keys.tensor();
    }
    if (to.values != nullptr) {
      args.source_values = from_values.tensor();
      args.values = to_values.tensor();
    }
    PKV_RETURN_IF_ERROR(
        device.call("fetch", device.backend().fetch.run, stream.handle(), &args, nullptr));
  }
  return absl::OkStatus();
}

// Pages for positions up to `tokens`; those that are written to and shared become the sequence's
// own.
absl::Status Layer::take_rows(const Stream& stream, int32_t sequence, int64_t tokens) {
  SequenceState& state = states_[index(sequence)];
  const int64_t sink = shape_.desc.sink;
  const int64_t page_tokens = shape_.desc.page_tokens;
  if (tokens == state.tokens) return absl::OkStatus();
  const bool writes_sink = state.tokens < sink;
  const auto held = static_cast<int64_t>(state.rows.size());
  const int64_t needed = shape_.row_pages(tokens);
  const int64_t first = std::max<int64_t>(0, state.tokens - sink) / page_tokens;
  const bool owns_sink = state.sink && !state.sink.is_shared();
  const bool copies_row =
      first < held && tokens > sink && state.rows[static_cast<std::size_t>(first)].is_shared();
  std::vector<PageRef> sinks;
  std::vector<PageRef> rows;
  PKV_RETURN_IF_ERROR(pools_.sinks->take(writes_sink && !owns_sink ? 1 : 0, sinks));
  PKV_RETURN_IF_ERROR(pools_.rows->take(needed - held + (copies_row ? 1 : 0), rows));
  PKV_RETURN_IF_ERROR(grow(stream, row_pages_, needed));
  if (near_pages_) PKV_RETURN_IF_ERROR(grow(stream, *near_pages_, needed));
  state.rows.reserve(static_cast<std::size_t>(needed));
  state.recent.reserve(static_cast<std::size_t>(needed));
  std::vector<PageRef> recent;
  const int64_t first_recent = std::max(held, first_recent_page(tokens));
  if (near_pages_) {  // or without them
    const int64_t missing = std::max<int64_t>(0, needed - first_recent) + (copies_row ? 1 : 0);
    pools_.recent->take(missing, recent).IgnoreError();
  }
  const auto next_recent = [&] {
    PageRef page;
    if (recent.empty()) return page;
    page = std::move(recent.back());
    recent.pop_back();
    return page;
  };
  note_change(sequence);

  if (!sinks.empty()) {
    if (state.sink) {
      PKV_RETURN_IF_ERROR(
          stream.copy(sinks.front().data(), state.sink.data(), pools_.sinks->page_bytes()));
    }
    state.sink = std::move(sinks.front());
    sink_pages_.set(pools_.words, sequence, 0, state.sink.data());
  }
  if (copies_row) {
    PageRef& old = state.rows[static_cast<std::size_t>(first)];
    PKV_RETURN_IF_ERROR(stream.copy(rows.back().data(), old.data(), pools_.rows->page_bytes()));
    old = std::move(rows.back());
    rows.pop_back();
    row_pages_.set(pools_.words, sequence, first, old.data());
    PKV_RETURN_IF_ERROR(own_recent(stream, sequence, first, next_recent()));
  }
  for (PageRef& page : rows) {
    const auto number = static_cast<int64_t>(state.rows.size());
    row_pages_.set(pools_.words, sequence, number, page.data());
    state.rows.push_back(std::move(page));
    state.recent.push_back(number >= first_recent ? next_recent() : PageRef());
    set_near_page(sequence, number);
  }
  drop_recent(sequence, std::max<int64_t>(0, tokens - shape_.most_recent_tokens()) / page_tokens);
  return absl::OkStatus();
}

// What an append that failed has taken.
void Layer::trim(int32_t sequence) {
  SequenceState& state = states_[index(sequence)];
  note_change(sequence);
  if (!pool_) {
    state.rows.resize(static_cast<std::size_t>(shape_.row_pages(state.tokens)));
    state.recent.resize(state.rows.size());
    state.first_recent = std::min(state.first_recent, state.rows.size());
  }
  if (state.tokens == 0) state.sink = PageRef();
  state.queries.truncate(state.tokens);
}

int64_t Layer::next_fit_of(const SequenceState& state) const {
  if (!is_sparse() || imported_) return kNever;
  return state.fits.empty() ? first_fit(shape_.rules)
                            : next_fit(shape_.rules, state.fits.back()->length);
}

// Rows first .. first + count - 1 of `queries` belong to the positions behind the sequence's
// tokens. Kept are those that some fit to come will ask for.
absl::Status Layer::keep_queries(const Stream& stream, int32_t sequence, const TensorView& queries,
                                 int64_t first, int64_t count) {
  SequenceState& state = states_[index(sequence)];
  const int64_t begin = state.tokens;
  const int64_t end = begin + count;
  int64_t done = begin;
  for (int64_t fit = next_fit_of(state); fit != kNever; fit = next_fit(shape_.rules, fit)) {
    const int64_t until = tokens_of_zone(shape_.rules, fit);
    if (until - shape_.desc.fit_positions >= end) break;
    done = std::max(done, until - shape_.desc.fit_positions);
    const int64_t some = std::min(end, until) - done;
    if (some <= 0) continue;
    PKV_RETURN_IF_ERROR(write_queries(stream, sequence, done, queries, first + done - begin, some));
    done += some;
  }
  return absl::OkStatus();
}

absl::Status Layer::write_queries(const Stream& stream, int32_t sequence, int64_t position,
                                  const TensorView& queries, int64_t token, int64_t count) {
  return states_[index(sequence)].queries.write(
      stream, *pools_.queries, pools_.query_bytes, position, count,
      [&](std::byte* to, int64_t begin, int64_t some) {
        return copy_queries(stream, queries, token + begin, some, to);
      });
}

// In one piece where they are one; else by fetch, to which a token is a head and a head a row:
// copies of single vectors take a device longer than their bytes.
absl::Status Layer::copy_queries(const Stream& stream, const TensorView& queries, int64_t token,
                                 int64_t count, std::byte* to) const {
  const int64_t heads = queries.extent(1);
  const int64_t d = queries.extent(2);
  auto* from = static_cast<std::byte*>(queries.origin()) +
               queries.element_offset(token, 0, 0) * queries.element_bytes();
  const bool is_packed = heads == 1 || queries.stride(1) == d;
  if (is_packed && (count == 1 || queries.stride(0) == heads * d)) {
    return stream.copy(to, from, count * heads * d * queries.element_bytes());
  }
  const Device& device = *shape_.device;
  const HostNumbers& numbers = *pools_.numbers;
  const Rows source{from, queries.stride(0), queries.stride(1)};
  const RowTensor from_rows(device, source, count, heads, d, queries.dtype());
  const RowTensor to_rows(device, {to, heads * d, d}, count, heads, d, queries.dtype());
  pkv_fetch_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = static_cast<int32_t>(count);
  args.batch.batch = 1;
  args.batch.sequences = numbers.zeros();
  args.batch.lengths = numbers.query_head_count();
  args.batch.max_length = heads;
  args.k = static_cast<int32_t>(heads);
  args.positions = numbers.query_heads();
  args.source_keys = from_rows.tensor();
  args.keys = to_rows.tensor();
  return device.call("fetch", device.backend().fetch.run, stream.handle(), &args, nullptr);
}

// Lists the bad tokens of a run that begins at `position`. With `from`, in memory of the host as
// the run is, its rows are copied there first, each looked at while the copy has it in a cache,
// token by token as engines lay them out: else twice the memory traffic, and a launch for a token.
void Layer::copy_and_look(const RowRun* from, const RowRun& run, int64_t position,
                          std::vector<BadToken>& found) const {
  const pkv_geometry& g = shape_.geometry;
  for (int64_t token = 0; token < run.tokens; ++token) {
    for (int32_t head = 0; head < g.kv_heads; ++head) {
      const auto row_of = [&](const Rows& rows) {
        return rows.data +
               (head * rows.head_stride + token * rows.token_stride) * shape_.element_bytes;
      };
      const auto is_bad = [&](Rows (*part)(const RowRun&), int64_t width) {
        std::byte* row = row_of(part(run));
        if (from != nullptr) {
          std::memcpy(row, row_of(part(*from)),
                      static_cast<std::size_t>(width * shape_.element_bytes));
        }
        return is_bad_row(shape_.desc.dtype, row, width);
      };
      const bool is_bad_key = is_bad(keys_of, g.head_dim);
      const bool is_bad_value = run.values != nullptr && is_bad(values_of, g.value_dim);
      if (is_bad_key || is_bad_value) found.push_back({position + token, head});
    }
  }
}

// Rows of `count` tokens behind the sequence's own, unless they lie in the caller's pages already.
// `bad`: where to list those that are not finite; NULL: nobody looks.
absl::Status Layer::write_rows(const Stream& stream, int32_t sequence, const Input& input,
                               int64_t first, int64_t count, std::vector<BadToken>* bad) const {
  const SequenceState& state = states_[index(sequence)];
  for (int64_t done = 0; done < count;) {
    const RowRun to = run_at(state, state.tokens + done, count - done);
    std::optional<RowRun> from;
    if (input.keys != nullptr) from = input_run(input, first + done, to.tokens);
    if (bad != nullptr) {
      copy_and_look(from ? &*from : nullptr, to, state.tokens + done, *bad);
    } else if (from) {
      PKV_RETURN_IF_ERROR(copy_run(stream, *from, to));
    }
    done += to.tokens;
  }
  const bool keeps = input.keeps_bad || shape_.codec_options.isolate;
  if (bad == nullptr || bad->empty() || keeps) return absl::OkStatus();
  const auto [position, head] = bad->front();
  const RowRun run = run_at(state, position, 1);
  const std::byte* key = run.keys + head * run.key_head_stride * shape_.element_bytes;
  const bool is_key = is_bad_row(shape_.desc.dtype, key, shape_.geometry.head_dim);
  return absl::InvalidArgumentError(
      str_cat(is_key ? "key" : "value", " of sequence ", sequence, ", position ", position,
              ", KV head ", head,
              " is not finite, accepted: keys and values whose squares have a finite sum (or "
              "nonfinite=isolate)"));
}

RowRun Layer::input_run(const Input& input, int64_t token, int64_t count) const {
  const int64_t bytes = shape_.element_bytes;
  const TensorView& keys = *input.keys;
  RowRun from{};
  from.tokens = count;
  from.keys = static_cast<std::byte*>(keys.origin()) + keys.element_offset(token, 0, 0) * bytes;
  from.key_token_stride = keys.stride(0);
  from.key_head_stride = keys.stride(1);
  if (input.values != nullptr) {
    const TensorView& values = *input.values;
    from.values =
        static_cast<std::byte*>(values.origin()) + values.element_offset(token, 0, 0) * bytes;
    from.value_token_stride = values.stride(0);
    from.value_head_stride = values.stride(1);
  }
  return from;
}

}  // namespace pkv
