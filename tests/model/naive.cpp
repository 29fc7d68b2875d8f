#include "tests/model/naive.h"

#include <algorithm>
#include <utility>

namespace pkv::cache_model {
namespace {

// Grown by a sixteenth, or by an eighth where it was long.
bool is_fit_due(int64_t zone, int64_t last) {
  return last < 16384 ? 16 * zone >= 17 * last : 8 * zone >= 9 * last;
}

}  // namespace

std::vector<uint64_t> NaiveLayer::slice(int64_t begin, int64_t count) const {
  std::vector<uint64_t> out;
  for (int64_t i = begin; i < begin + count; ++i) {
    out.push_back(entries[static_cast<std::size_t>(i)].token);
  }
  return out;
}

Naive::Naive(const Shape& shape)
    : shape_(shape), sequences_(at(shape.sequences)), is_imported_(at(shape.layers), false) {
  for (Sequence& sequence : sequences_) sequence.layers.resize(at(shape.layers));
}

int32_t Naive::free_slot() const {
  for (int32_t s = 0; s < shape_.sequences; ++s) {
    if (!in_use(s)) return s;
  }
  return -1;
}

std::vector<int32_t> Naive::live() const {
  std::vector<int32_t> live;
  for (int32_t s = 0; s < shape_.sequences; ++s) {
    if (in_use(s)) live.push_back(s);
  }
  return live;
}

int64_t Naive::shortest(int32_t sequence) const {
  int64_t shortest = INT64_MAX;
  for (const NaiveLayer& layer : sequences_[at(sequence)].layers) {
    shortest = std::min(shortest, layer.tokens());
  }
  return shortest;
}

int64_t Naive::longest(int32_t sequence) const {
  int64_t longest = 0;
  for (const NaiveLayer& layer : sequences_[at(sequence)].layers) {
    longest = std::max(longest, layer.tokens());
  }
  return longest;
}

int32_t Naive::add() {
  const int32_t slot = free_slot();
  sequences_[at(slot)].in_use = true;
  return slot;
}
void Naive::remove(int32_t sequence) {
  reset(sequence);
  sequences_[at(sequence)].in_use = false;
}
void Naive::reset(int32_t sequence) {
  for (NaiveLayer& layer : sequences_[at(sequence)].layers) layer = NaiveLayer{};
}

int64_t Naive::zone_of(int64_t tokens) const {
  const int64_t behind = std::max<int64_t>(0, tokens - shape_.sink - shape_.local);
  return shape_.interval * (behind / shape_.interval);
}

// One interval after the other, however many came at once.
void Naive::grow_zone(int32_t layer, NaiveLayer& state) const {
  if (!shape_.is_sparse(layer)) return;
  const int64_t wanted = zone_of(state.tokens());
  while (state.zone < wanted) {
    state.zone += shape_.interval;
    if (is_imported(layer)) continue;
    const bool is_due = state.fits.empty()
                            ? state.zone >= shape_.dense_below
                            : shape_.refits != 0 && is_fit_due(state.zone, state.fits.back().zone);
    if (is_due) state.fits.push_back({state.zone, false, true, {}});
  }
}

void Naive::append(int32_t layer, int32_t sequence, const std::vector<uint64_t>& tokens,
                   bool with_queries) {
  NaiveLayer& state = sequences_[at(sequence)].layers[at(layer)];
  for (const uint64_t token : tokens) {
    state.entries.push_back({token, with_queries});
    if (shape_.deferred == 0) grow_zone(layer, state);
  }
}
void Naive::append_all(int32_t sequence, const std::vector<uint64_t>& tokens, bool with_queries) {
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    append(layer, sequence, tokens, with_queries);
  }
}

void Naive::truncate(int32_t sequence, int64_t tokens) {
  for (NaiveLayer& state : sequences_[at(sequence)].layers) {
    state.entries.resize(static_cast<std::size_t>(tokens));
    state.zone = std::min(state.zone, zone_of(tokens));
    while (!state.fits.empty() && state.fits.back().zone > state.zone) state.fits.pop_back();
  }
}

int32_t Naive::fork(int32_t source, int64_t tokens) {
  const int32_t slot = add();
  sequences_[at(slot)].layers = sequences_[at(source)].layers;
  if (tokens >= 0) truncate(slot, tokens);
  return slot;
}

void Naive::move(int32_t sequence, int32_t slot) {
  if (sequence == slot) return;
  std::swap(sequences_[at(sequence)], sequences_[at(slot)]);
}

int32_t Naive::put(std::vector<NaiveLayer> layers) {
  const int32_t slot = add();
  sequences_[at(slot)].layers = std::move(layers);
  return slot;
}

void Naive::flush() {
  for (Sequence& sequence : sequences_) {
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      grow_zone(layer, sequence.layers[at(layer)]);
    }
  }
}

void Naive::refit(int32_t layer, int32_t sequence, const std::vector<uint64_t>* queries) {
  NaiveLayer& state = sequences_[at(sequence)].layers[at(layer)];
  grow_zone(layer, state);
  if (state.fits.back().zone == state.zone) state.fits.pop_back();
  state.fits.push_back({state.zone, true, queries != nullptr, {}});
  if (queries != nullptr) state.fits.back().queries = *queries;
}

bool Naive::is_encoded(int32_t layer, int32_t sequence) const {
  const NaiveLayer& state = this->layer(layer, sequence);
  if (!shape_.is_sparse(layer)) return false;
  return is_imported(layer) ? state.zone >= shape_.dense_below : !state.fits.empty();
}

pkv_cache_regions Naive::regions(int32_t layer, int32_t sequence) const {
  const NaiveLayer& state = this->layer(layer, sequence);
  pkv_cache_regions out{};
  out.is_encoded = is_encoded(layer, sequence) ? 1 : 0;
  out.tokens = state.tokens();
  out.sink = std::min(out.tokens, shape_.sink);
  out.zone = state.zone;
  out.tail = out.tokens - out.sink - out.zone;
  out.fits = static_cast<int64_t>(state.fits.size());
  out.fit_length = state.fits.empty() ? 0 : state.fits.back().zone;
  out.next_fit = INT64_MAX;
  const bool is_fitted_later =
      shape_.is_sparse(layer) && !is_imported(layer) && (state.fits.empty() || shape_.refits != 0);
  if (is_fitted_later) {
    int64_t next = 0;
    while (state.fits.empty() ? next < shape_.dense_below : !is_fit_due(next, out.fit_length)) {
      next += shape_.interval;
    }
    out.next_fit = next;
  }
  return out;
}

std::vector<uint64_t> Naive::fit_queries(int32_t layer, int32_t sequence) const {
  const NaiveLayer& state = this->layer(layer, sequence);
  const NaiveFit& fit = state.fits.back();
  if (fit.is_requested) return fit.queries;
  const int64_t end = shape_.sink + fit.zone + shape_.local;
  std::vector<uint64_t> queries;
  for (int64_t i = std::max<int64_t>(0, end - shape_.fit_positions); i < end; ++i) {
    const NaiveLayer::Entry& entry = state.entries[static_cast<std::size_t>(i)];
    if (entry.has_query) queries.push_back(entry.token);
  }
  return queries;
}

}  // namespace pkv::cache_model
