#include "tests/model/operations.h"

#include <algorithm>
#include <utility>

#include "fmt/core.h"
#include "fmt/format.h"
#include "tests/conformance/random.h"
#include "tests/model/judge.h"

namespace pkv::cache_model {
namespace {

struct Weight {
  Kind kind;
  int32_t share;
};
constexpr Weight kWeights[] = {
    {Kind::kAdd, 8},         {Kind::kRemove, 3},  {Kind::kReset, 2},     {Kind::kAppend, 26},
    {Kind::kAppendLayer, 6}, {Kind::kDecode, 16}, {Kind::kTruncate, 14}, {Kind::kFork, 6},
    {Kind::kRefit, 5},       {Kind::kFlush, 5},   {Kind::kSaveOne, 2},   {Kind::kSaveAll, 1},
    {Kind::kRefused, 4},     {Kind::kStale, 2},
};

int64_t below(uint64_t word, int64_t bound) {
  return static_cast<int64_t>(word % static_cast<uint64_t>(bound));
}
// An independent number out of a word.
uint64_t again(uint64_t word, uint64_t salt) {
  return conformance::Random(word ^ (salt * 0x9E3779B97F4A7C15ULL)).next();
}

}  // namespace

std::vector<Operation> random_operations(uint64_t seed, int64_t count) {
  conformance::Random random(seed);
  int64_t total = 0;
  for (const Weight& weight : kWeights) total += weight.share;
  std::vector<Operation> operations;
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = random.below(total);
    const Weight* weight = kWeights;
    while (at >= weight->share) at -= (weight++)->share;
    Operation operation{i == 0 ? Kind::kAdd : weight->kind, {}};
    for (uint64_t& word : operation.words) word = random.next();
    operations.push_back(operation);
  }
  return operations;
}

Runner::Runner(Machine& machine, const Shape& shape, std::filesystem::path folder,
               int64_t deep_every)
    : machine_(machine),
      shape_(shape),
      folder_(std::move(folder)),
      deep_every_(deep_every),
      world_(std::make_unique<World>(machine, shape, rows_)),
      naive_(shape) {}

int32_t Runner::pick(uint64_t word) const {
  const std::vector<int32_t> live = naive_.live();
  if (live.empty()) return -1;
  return live[static_cast<std::size_t>(below(word, static_cast<int64_t>(live.size())))];
}

std::vector<uint64_t> Runner::fresh(uint64_t word, int64_t count) const {
  std::vector<uint64_t> tokens;
  const uint64_t first = again(word, 17) >> 16;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<uint64_t>(i));
  return tokens;
}

// Different sequences in no order, with `tokens` tokens each.
Parts Runner::pick_parts(uint64_t word, int64_t most_sequences, int64_t tokens) const {
  std::vector<int32_t> live = naive_.live();
  Parts parts;
  const int64_t wanted = 1 + below(again(word, 1), most_sequences);
  for (int64_t i = 0; i < wanted && !live.empty(); ++i) {
    const uint64_t salt = static_cast<uint64_t>(i) + 2;
    const auto at = below(again(word, salt), static_cast<int64_t>(live.size()));
    parts.push_back({live[static_cast<std::size_t>(at)], fresh(word + salt, tokens)});
    live.erase(live.begin() + at);
  }
  return parts;
}

// Mostly a few tokens, sometimes a prompt.
int64_t Runner::chunk(uint64_t word) const {
  const int64_t kind = below(again(word, 3), 100);
  const int64_t most = kind < 45 ? 8 : kind < 85 ? 200 : 1500;
  return std::min(1 + below(again(word, 4), most), shape_.capacity);
}

void Runner::expect(pkv_status status, pkv_status expected, const char* what) const {
  if (status == expected) return;
  throw Mismatch(fmt::format("{}: {} ({}), expected {}", what, pkv_status_name(status),
                             status == PKV_OK ? "" : pkv_last_error(), pkv_status_name(expected)));
}

bool Runner::is_done(pkv_status status, const char* what) const {
  if (status == PKV_RESOURCE_EXHAUSTED && shape_.max_bytes > 0) return false;
  expect(status, PKV_OK, what);
  return true;
}

void Runner::apply(const Operation& operation) {
  const uint64_t word = operation.words[0];
  ++applied_;
  last_ = "nothing to do";
  if (operation.kind == Kind::kAdd) {
    add();
  } else if (pick(word) >= 0) {
    switch (operation.kind) {
      case Kind::kAdd: break;
      case Kind::kRemove: remove(operation); break;
      case Kind::kReset:
        last_ = fmt::format("reset {}", pick(word));
        world_->reset(pick(word));
        naive_.reset(pick(word));
        break;
      case Kind::kAppend: append(operation); break;
      case Kind::kAppendLayer: append_layer(operation); break;
      case Kind::kDecode: decode(operation); break;
      case Kind::kTruncate: truncate(operation); break;
      case Kind::kFork: fork(operation); break;
      case Kind::kRefit: refit(operation); break;
      case Kind::kFlush:
        last_ = "flush";
        world_->flush();
        naive_.flush();
        break;
      case Kind::kSaveOne: save_one(operation); break;
      case Kind::kSaveAll: save_all(); break;
      case Kind::kRefused: refused(operation); break;
      case Kind::kStale: stale(operation); break;
    }
  }
  compare(operation);
}

void Runner::add() {
  const int32_t expected = naive_.free_slot();
  last_ = fmt::format("add -> {}", expected);
  int32_t slot = -1;
  const pkv_status status = pkv_cache_add(world_->cache(), &slot);
  expect(status, expected < 0 ? PKV_RESOURCE_EXHAUSTED : PKV_OK, "add");
  if (expected < 0) return;
  if (slot != naive_.add()) throw Mismatch(fmt::format("add took slot {}", slot));
}

// Not the last one: an empty cache tests little.
void Runner::remove(const Operation& operation) {
  if (naive_.live().size() < 2) return;
  const int32_t sequence = pick(operation.words[0]);
  last_ = fmt::format("remove {}", sequence);
  world_->remove(sequence);
  naive_.remove(sequence);
}

void Runner::append(const Operation& operation) {
  Parts parts = pick_parts(operation.words[0], 3, 1);
  const bool with_queries = below(operation.words[1], 4) != 0;
  last_ = fmt::format("append, queries {}:", with_queries);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const uint64_t word = operation.words[2] + i;
    parts[i].tokens = fresh(word, chunk(word));
    last_ += fmt::format(" {} to {}", parts[i].tokens.size(), parts[i].sequence);
  }
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    bool fits = true;
    for (const Part& part : parts) {
      const int64_t tokens = naive_.layer(layer, part.sequence).tokens();
      fits &= tokens + static_cast<int64_t>(part.tokens.size()) <= shape_.capacity;
    }
    const pkv_status status = world_->append(layer, parts, with_queries);
    if (!fits) {
      expect(status, PKV_RESOURCE_EXHAUSTED, "append past the capacity");
      continue;
    }
    if (!is_done(status, "append")) continue;
    for (const Part& part : parts) {
      naive_.append(layer, part.sequence, part.tokens, with_queries);
    }
    appended_ += token_count(parts);
  }
}

// One layer runs ahead of the others.
void Runner::append_layer(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  const auto layer = static_cast<int32_t>(below(operation.words[1], shape_.layers));
  const int64_t room = shape_.capacity - naive_.layer(layer, sequence).tokens();
  const std::vector<uint64_t> tokens =
      fresh(operation.words[2], std::min(room, chunk(operation.words[2])));
  last_ = fmt::format("append {} to {} in layer {}", tokens.size(), sequence, layer);
  if (!is_done(world_->append(layer, {{sequence, tokens}}), "append")) return;
  naive_.append(layer, sequence, tokens);
  appended_ += static_cast<int64_t>(tokens.size());
}

void Runner::decode(const Operation& operation) {
  const int64_t most = std::min<int64_t>(shape_.local + 1, 4);
  Parts parts = pick_parts(operation.words[0], 4, 1);
  last_ = "decode_step:";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const uint64_t word = operation.words[1] + i;
    parts[i].tokens = fresh(word, 1 + below(word, most));
    last_ += fmt::format(" {} to {}", parts[i].tokens.size(), parts[i].sequence);
  }
  const bool is_exact = below(operation.words[2], 8) == 0;
  const uint32_t flags = is_exact ? static_cast<uint32_t>(PKV_CACHE_EXACT) : 0;
  if (is_exact) last_ += ", exact";
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    Parts here;
    for (const Part& part : parts) {
      const int64_t tokens = naive_.layer(layer, part.sequence).tokens();
      const auto more = static_cast<int64_t>(part.tokens.size());
      if (tokens + more <= shape_.capacity) here.push_back(part);
    }
    if (!shape_.attends()) {
      if (!is_done(world_->append(layer, here), "append")) continue;
    } else {
      Attended attended;
      if (!is_done(world_->decode_step(layer, here, flags, attended), "decode_step")) continue;
      for (const Part& part : here) naive_.append(layer, part.sequence, part.tokens);
      appended_ += token_count(here);
      if (applied_ % 8 == 0) judge_step(*world_, naive_, layer, here, flags, attended);
      continue;
    }
    for (const Part& part : here) naive_.append(layer, part.sequence, part.tokens);
    appended_ += token_count(here);
  }
}

// By a few tokens, across a flush, or to anywhere.
void Runner::truncate(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  const int64_t tokens = naive_.shortest(sequence);
  const int64_t kind = below(operation.words[1], 10);
  int64_t less = below(operation.words[2], 6);
  if (kind >= 6) less = below(operation.words[2], 3 * shape_.interval + shape_.local + 1);
  if (kind == 9) less = below(operation.words[2], tokens + 1);
  const int64_t left = std::max<int64_t>(0, tokens - less);
  last_ = fmt::format("truncate {} to {} of {}", sequence, left, tokens);
  const pkv_status status = pkv_cache_truncate(world_->cache(), world_->stream(), sequence, left);
  if (naive_.longest(sequence) == left) {
    expect(status, PKV_OK, "truncate to the length that it has");
  } else if (is_done(status, "truncate")) {  // a cut inside a shared page takes one of its own
    naive_.truncate(sequence, left);
  }
}

void Runner::fork(const Operation& operation) {
  const int32_t source = pick(operation.words[0]);
  const int64_t tokens = naive_.shortest(source);
  const bool is_whole = below(operation.words[1], 2) == 0;
  const int64_t wanted = is_whole ? -1 : below(operation.words[2], tokens + 1);
  const int32_t expected = naive_.free_slot();
  last_ = fmt::format("fork {} at {} of {} -> {}", source, wanted, tokens, expected);
  int32_t slot = -1;
  const pkv_status status =
      pkv_cache_fork(world_->cache(), world_->stream(), source, wanted, &slot);
  if (expected < 0) return expect(status, PKV_RESOURCE_EXHAUSTED, "fork without a free slot");
  if (!is_done(status, "fork")) return;
  if (slot != naive_.fork(source, wanted)) throw Mismatch(fmt::format("fork took slot {}", slot));
}

void Runner::refit(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  const auto layer = static_cast<int32_t>(below(operation.words[1], shape_.layers));
  const std::vector<uint64_t> queries = fresh(operation.words[2], below(operation.words[2], 70));
  const std::vector<uint64_t>* sample = below(operation.words[3], 3) == 0 ? nullptr : &queries;
  last_ = fmt::format("refit layer {} of {} with {}", layer, sequence,
                      sample == nullptr ? "keys alone" : fmt::format("{} queries", queries.size()));
  const bool may = naive_.is_encoded(layer, sequence) && !naive_.is_imported(layer);
  const pkv_status status = world_->refit(layer, sequence, sample);
  if (!may) return expect(status, PKV_FAILED_PRECONDITION, "refit");
  if (is_done(status, "refit")) naive_.refit(layer, sequence, sample);
}

void Runner::save_one(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  const int32_t expected = naive_.free_slot();
  last_ = fmt::format("save {}, load -> {}", sequence, expected);
  const std::string path = (folder_ / "one.pkv").string();
  check(pkv_cache_save_sync(world_->cache(), world_->stream(), sequence, path.c_str(),
                            PKV_SAVE_OVERWRITE));
  int32_t slot = -1, count = -1;
  const pkv_status status =
      pkv_cache_load_sync(world_->cache(), world_->stream(), path.c_str(), 1, &slot, &count);
  if (expected < 0) return expect(status, PKV_RESOURCE_EXHAUSTED, "load without a free slot");
  if (!is_done(status, "load")) return;
  const bool is_there = count == 1 && slot == naive_.fork(sequence, -1);
  flush_loaded(*world_);
  if (!is_there) {
    throw Mismatch(fmt::format("load gave {} sequences, the first in slot {}", count, slot));
  }
}

// What is loaded into a deferred cache has no records before a flush.
void Runner::flush_loaded(World& world) {
  if (shape_.deferred == 0) return;
  world.flush();
  naive_.flush();
}

// Into a cache of its own, which is used from then on.
void Runner::save_all() {
  last_ = "save all, load into another cache";
  const std::string path = (folder_ / "all.pkv").string();
  check(
      pkv_cache_save_sync(world_->cache(), world_->stream(), -1, path.c_str(), PKV_SAVE_OVERWRITE));
  auto other = std::make_unique<World>(machine_, shape_, rows_);
  const std::vector<int32_t> live = naive_.live();
  std::vector<int32_t> slots(live.size() + 1, -1);
  int32_t count = -1;
  const pkv_status status =
      pkv_cache_load_sync(other->cache(), other->stream(), path.c_str(),
                          static_cast<int32_t>(live.size()), slots.data(), &count);
  if (!is_done(status, "load")) return;  // in the file nothing is shared
  if (count != static_cast<int32_t>(live.size()) || slots.back() != -1) {
    throw Mismatch(fmt::format("load gave {} sequences, expected {}", count, live.size()));
  }
  // Ascending in the file, so they move to the front in their order.
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (slots[i] != static_cast<int32_t>(i)) {
      throw Mismatch(fmt::format("load put sequence {} into slot {}", i, slots[i]));
    }
    naive_.move(live[i], slots[i]);
  }
  flush_loaded(*other);
  world_ = std::move(other);
  for (const int32_t sequence : naive_.live()) judge_regions(*world_, naive_, sequence);
}

// Calls that must fail, and change nothing: compare() looks.
void Runner::refused(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  const int64_t tokens = naive_.shortest(sequence);
  const std::vector<uint64_t> one = fresh(operation.words[2], 1);
  Attended attended;
  Found found;
  switch (below(operation.words[1], 8)) {
    case 0:
      last_ = fmt::format("truncate {} to more than it has", sequence);
      return expect(pkv_cache_truncate(world_->cache(), world_->stream(), sequence, tokens + 1),
                    PKV_OUT_OF_RANGE, "truncate");
    case 1: {
      last_ = "append to a slot outside";
      return expect(world_->append(0, {{sequence, one}, {shape_.sequences, one}}), PKV_OUT_OF_RANGE,
                    "append");
    }
    case 2: {
      const int32_t free = naive_.free_slot();
      if (free < 0) return;
      last_ = fmt::format("append to {}, which is not in use", free);
      return expect(world_->append(0, {{sequence, one}, {free, one}}), PKV_FAILED_PRECONDITION,
                    "append");
    }
    case 3:
      last_ = fmt::format("append twice to {} in one call", sequence);
      return expect(world_->append(0, {{sequence, one}, {sequence, one}}), PKV_INVALID_ARGUMENT,
                    "append");
    case 4:
      last_ = "append to a layer outside";
      return expect(world_->append(shape_.layers, {{sequence, one}}), PKV_OUT_OF_RANGE, "append");
    case 5: {
      last_ = fmt::format("append past the capacity of {}", sequence);
      const int64_t room = shape_.capacity - naive_.layer(0, sequence).tokens();
      if (room == shape_.capacity) return;  // then the count itself is out of range
      return expect(world_->append(0, {{sequence, fresh(operation.words[2], room + 1)}}),
                    PKV_RESOURCE_EXHAUSTED, "append");
    }
    case 6: {
      if (!shape_.attends() || !shape_.is_sparse(0)) return;
      last_ = fmt::format("attend with more tokens than local + 1 for {}", sequence);
      if (naive_.layer(0, sequence).tokens() < shape_.local + 2) return;
      return expect(
          world_->attend(0, {{sequence, fresh(operation.words[2], shape_.local + 2)}}, 0, attended),
          PKV_INVALID_ARGUMENT, "attend");
    }
    default: {
      last_ = "a key that is NaN, behind one that is not";
      std::vector<uint64_t> two = fresh(operation.words[2], 2);
      two[1] |= kNan;
      if (naive_.layer(0, sequence).tokens() + 2 > shape_.capacity) return;
      const pkv_status status = world_->append(0, {{sequence, two}});
      const bool lacks_pages = shape_.max_bytes > 0 && status == PKV_RESOURCE_EXHAUSTED;
      return expect(lacks_pages ? PKV_INVALID_ARGUMENT : status, PKV_INVALID_ARGUMENT, "append");
    }
  }
}

// Hits of a layer that has changed since are refused.
void Runner::stale(const Operation& operation) {
  const int32_t sequence = pick(operation.words[0]);
  if (!shape_.is_sparse(0) || naive_.layer(0, sequence).tokens() == shape_.capacity) return;
  last_ = fmt::format("fetch after {} grew", sequence);
  const Parts parts = {{sequence, fresh(operation.words[1], 1)}};
  Found found;
  check(world_->retrieve(0, parts, found));
  if (!is_done(world_->append(0, parts), "append")) return;
  naive_.append(0, sequence, parts[0].tokens);
  Tensor keys(shape_.dtype, {0}), values(shape_.dtype, {0});
  expect(world_->fetch(0, parts, found, keys, values), PKV_FAILED_PRECONDITION, "fetch");
}

void Runner::compare(const Operation& operation) {
  judge_use(*world_, naive_);
  const std::vector<int32_t> live = naive_.live();
  for (const int32_t sequence : live) judge_regions(*world_, naive_, sequence);
  if (live.empty()) return;
  const uint64_t word = again(operation.words[3], 5);
  const auto layer = static_cast<int32_t>(below(again(word, 6), shape_.layers));
  if (shape_.is_sparse(layer))
    judge_fetch(*world_, naive_, layer, pick_parts(word, 3, 1 + below(again(word, 7), 2)));
  const int32_t sequence = pick(again(word, 8));
  const int64_t tokens = naive_.layer(layer, sequence).tokens();
  const int64_t begin = below(again(word, 9), tokens + 1);
  judge_rows(*world_, naive_, layer, sequence, begin, std::min<int64_t>(8, tokens - begin));
  if (applied_ % deep_every_ != 0) return;
  judge_rows(*world_, naive_, layer, sequence, 0, tokens);
  judge_answers(*world_, naive_, layer, sequence, fresh(word, 3));
}

void Runner::finish() {
  for (const int32_t sequence : naive_.live()) world_->remove(sequence);
  const pkv_cache_usage usage = world_->usage();
  const pkv_cache_usage fresh = World(machine_, shape_).usage();
  const auto same = [](const char* what, int64_t is, int64_t wanted) {
    if (is != wanted) throw Mismatch(fmt::format("{} held by no one: {} bytes", what, is));
  };
  same("row_pages", usage.row_pages, 0);
  same("record_pages", usage.record_pages, 0);
  same("codecs", usage.codecs, fresh.codecs);
  same("samples", usage.samples, 0);
  same("shared_pages", world_->stats().shared_pages, 0);
}

}  // namespace pkv::cache_model
