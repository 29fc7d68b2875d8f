#include "tests/soak/serving.h"

#include <chrono>
#include <utility>

#include "fmt/core.h"

namespace pkv::soak {

using cache_model::Attended;
using cache_model::Batch;
using cache_model::Mismatch;
using cache_model::Part;
using cache_model::Parts;
using cache_model::Tensor;
using cache_model::World;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kCommonTokens = 150;
constexpr int64_t kChunk = 64;  // tokens of a prompt a step
constexpr int64_t kMostDrafts = 4;
constexpr int64_t kPatience = 400;  // steps that one rests in memory

}  // namespace

cache_model::Shape serving_shape() {
  cache_model::Shape shape;
  shape.name = "serving";
  shape.layers = 2;
  shape.sequences = 24;
  shape.head_dim = shape.value_dim = 32;
  shape.capacity = 1024;
  shape.max_bytes = int64_t{8} << 20;  // less than all slots full: evictions are needed
  shape.local = shape.interval = 32;
  shape.dense_below = 64;
  shape.fit_positions = 16;
  shape.options = {{"k", "16"}, {"candidates", "0.1"}};
  shape.policies = {{PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 80}};
  return shape;
}

Serving::Serving(World& world, std::filesystem::path folder, uint64_t seed, int64_t deep)
    : world_(world), naive_(world.shape()), folder_(std::move(folder)), random_(seed), deep_(deep) {
  common_ = world_.add();
  naive_.add();
  const std::vector<uint64_t> tokens = fresh(kCommonTokens);
  world_.append_all(common_, tokens);
  naive_.append_all(common_, tokens);
}

std::vector<uint64_t> Serving::fresh(int64_t count) {
  std::vector<uint64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(next_token_++);
  return tokens;
}

std::string Serving::path_of(const Talk& talk) const {
  return (folder_ / fmt::format("{}.pkv", talk.number)).string();
}

double Serving::step(double rate) {
  ++now_;
  arrive(rate);
  wake();
  for (Talk& talk : talks_) {
    if (talk.state == State::kWaiting) admit(talk);
  }
  prefill();
  const double microseconds = decode();
  talks_.remove_if([](const Talk& talk) { return talk.slot == -2; });
  look();
  return microseconds;
}

void Serving::arrive(double rate) {
  if (random_.uniform() >= rate) return;
  Talk talk;
  talk.number = ++counts_.arrivals;
  talk.prompt_left = one_in(4) ? between(100, 400) : between(10, 120);
  talk.answer_left = between(20, 160);
  talk.drafts = one_in(3);
  talks_.push_back(talk);
}

void Serving::admit(Talk& talk) {
  if (naive_.free_slot() < 0 && !make_room()) return;
  ++counts_.calls;
  const int32_t expected = naive_.free_slot();
  if (one_in(5)) {
    talk.slot = world_.add();
    naive_.add();
  } else {
    int32_t slot = -1;
    const pkv_status status = pkv_cache_fork(world_.cache(), world_.stream(), common_, -1, &slot);
    if (status == PKV_RESOURCE_EXHAUSTED) {
      ++counts_.out_of_memory;
      make_room();
      return;
    }
    check(status);
    ++counts_.forks;
    talk.slot = slot;
    naive_.fork(common_, -1);
  }
  if (talk.slot != expected)
    throw Mismatch(fmt::format("slot {}, expected {}", talk.slot, expected));
  talk.state = State::kPrefill;
}

void Serving::wake() {
  for (Talk& talk : talks_) {
    if (talk.state == State::kFiled && talk.wake <= now_) {
      move_back(talk);
    } else if (talk.state == State::kResting && talk.wake <= now_) {
      talk.prompt_left = between(5, 80);
      talk.answer_left = between(20, 160);
      talk.state = State::kPrefill;
    } else if (talk.state == State::kResting && talk.wake > now_ + kPatience) {
      move_to_file(talk, State::kResting);
    }
  }
}

template <class Call>
bool Serving::all_layers(const Parts& parts, Call call) {
  std::vector<int64_t> before;
  for (const Part& part : parts) before.push_back(naive_.shortest(part.sequence));
  for (int32_t layer = 0; layer < world_.shape().layers; ++layer) {
    ++counts_.calls;
    const pkv_status status = call(layer);
    if (status == PKV_OK) {
      for (const Part& part : parts) naive_.append(layer, part.sequence, part.tokens);
      continue;
    }
    if (status != PKV_RESOURCE_EXHAUSTED) check(status);
    ++counts_.out_of_memory;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (naive_.longest(parts[i].sequence) == before[i]) continue;
      world_.truncate(parts[i].sequence, before[i]);
      naive_.truncate(parts[i].sequence, before[i]);
    }
    if (!make_room()) throw Mismatch("no memory for a call, and nobody to move to a file");
    return false;
  }
  return true;
}

void Serving::prefill() {
  Parts parts;
  std::vector<Talk*> talks;
  for (Talk& talk : talks_) {
    if (talk.state != State::kPrefill || parts.size() == 4) continue;
    const int64_t room = world_.shape().capacity - tokens_of(talk) - talk.answer_left - kMostDrafts;
    talk.prompt_left = std::min(talk.prompt_left, room);
    if (talk.prompt_left <= 0) {
      remove(talk);
      continue;
    }
    const int64_t most = between(1, kChunk);
    parts.push_back({talk.slot, fresh(std::min(most, talk.prompt_left))});
    talks.push_back(&talk);
  }
  if (parts.empty()) return;
  if (!all_layers(parts, [&](int32_t layer) { return world_.append(layer, parts); })) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto count = static_cast<int64_t>(parts[i].tokens.size());
    counts_.prefilled += count;
    talks[i]->prompt_left -= count;
    if (talks[i]->prompt_left == 0) {
      talks[i]->state = State::kDecode;
      talks[i]->answer_begin = tokens_of(*talks[i]);
    }
  }
}

pkv_status Serving::timed_decode(int32_t layer, const Parts& parts, double& microseconds) {
  std::vector<uint64_t> tokens;
  for (const Part& part : parts)
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
  const cache_model::Shape& shape = world_.shape();
  const Batch batch(parts);
  const Tensor keys = world_.content().keys(tokens, layer);
  const Tensor values = world_.content().values(tokens, layer);
  const Tensor queries = world_.content().queries(tokens, layer);
  const Tensor output(shape.output_dtype, {token_count(parts), shape.query_heads, shape.value_dim});
  auto attention = cache_model::filled<pkv_cache_attention, pkv_cache_attention_init>();
  attention.query = queries.view();
  attention.output = output.view();
  const pkv_tensor k = keys.view(), v = values.view();
  const auto begin = Clock::now();
  const pkv_status status =
      pkv_cache_decode_step(world_.cache(), world_.stream(), layer, &batch.c, &k, &v, &attention);
  if (status == PKV_OK) check(pkv_stream_sync(world_.stream()));
  microseconds += std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  return status;
}

double Serving::decode() {
  Parts parts;
  std::vector<Talk*> talks;
  for (Talk& talk : talks_) {
    if (talk.state != State::kDecode) continue;
    parts.push_back({talk.slot, fresh(talk.drafts ? between(1, kMostDrafts) : 1)});
    talks.push_back(&talk);
  }
  if (parts.empty()) return -1;
  double microseconds = 0;
  ++counts_.steps;
  // A step whose answers are compared is not timed: it asks for more.
  const bool is_compared = counts_.steps % deep_ == 0;
  Attended attended;
  const bool is_done = all_layers(parts, [&](int32_t layer) {
    return is_compared ? world_.decode_step(layer, parts, 0, attended)
                       : timed_decode(layer, parts, microseconds);
  });
  if (!is_done) return -1;
  if (is_compared) {
    // Of the last layer what this step gave, of all what the sequences now answer.
    judge_step(world_, naive_, world_.shape().layers - 1, parts, 0, attended);
    const Part& one =
        parts[static_cast<std::size_t>(random_.below(static_cast<int64_t>(parts.size())))];
    for (int32_t layer = 0; layer < world_.shape().layers; ++layer) {
      judge_rows(world_, naive_, layer, one.sequence, 0,
                 naive_.layer(layer, one.sequence).tokens());
      judge_answers(world_, naive_, layer, one.sequence, one.tokens);
    }
    ++counts_.compared;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto count = static_cast<int64_t>(parts[i].tokens.size());
    counts_.decoded += count;
    roll_back(*talks[i], count);
  }
  return is_compared ? -1 : microseconds;
}

// Of the drafts some are rejected; now and then a whole answer is, to be tried again.
void Serving::roll_back(Talk& talk, int64_t drafted) {
  const int64_t tokens = tokens_of(talk);
  int64_t left = tokens - random_.below(drafted);
  if (one_in(150)) {
    left = talk.answer_begin;
    ++counts_.retries;
  }
  if (left < tokens) {
    ++counts_.calls;
    ++counts_.rollbacks;
    const pkv_status status = pkv_cache_truncate(world_.cache(), world_.stream(), talk.slot, left);
    if (status == PKV_RESOURCE_EXHAUSTED) {  // a cut in a shared page takes one of its own
      ++counts_.out_of_memory;
      make_room();
      left = tokens;
    } else {
      check(status);
      naive_.truncate(talk.slot, left);
    }
  }
  talk.answer_left -= std::max<int64_t>(0, left - (tokens - drafted));
  if (one_in(2000) && naive_.is_encoded(0, talk.slot)) {
    ++counts_.calls;
    ++counts_.refits;
    const std::vector<uint64_t> queries = fresh(20);
    const pkv_status status = world_.refit(0, talk.slot, &queries);
    if (status != PKV_RESOURCE_EXHAUSTED) {
      check(status);
      naive_.refit(0, talk.slot, &queries);
    }
  }
  const bool is_full = left + kMostDrafts > world_.shape().capacity;
  if (talk.answer_left <= 0 || is_full) end_turn(talk);
}

void Serving::end_turn(Talk& talk) {
  if (++talk.turns == 4 || one_in(3)) return remove(talk);
  talk.state = State::kResting;
  talk.wake = now_ + (one_in(3) ? between(kPatience + 1, 2000) : between(5, 300));
}

// Whether somebody was moved to a file: one that rests, else the one that came last.
bool Serving::make_room() {
  Talk* chosen = nullptr;
  for (Talk& talk : talks_) {
    if (talk.state != State::kResting) continue;
    if (chosen == nullptr || talk.wake > chosen->wake) chosen = &talk;
  }
  if (chosen != nullptr) return move_to_file(*chosen, State::kResting), true;
  for (Talk& talk : talks_) {
    if (talk.state == State::kPrefill || talk.state == State::kDecode) chosen = &talk;
  }
  if (chosen == nullptr) return false;
  const State then = chosen->state;
  move_to_file(*chosen, then);
  chosen->wake = now_ + between(20, 100);
  return true;
}

void Serving::move_to_file(Talk& talk, State then) {
  counts_.calls += 2;
  ++counts_.saves;
  check(pkv_cache_save_sync(world_.cache(), world_.stream(), talk.slot, path_of(talk).c_str(), 0));
  talk.kept = naive_.layers(talk.slot);
  world_.remove(talk.slot);
  naive_.remove(talk.slot);
  talk.slot = -1;
  talk.state = State::kFiled;
  talk.then = then;
}

void Serving::move_back(Talk& talk) {
  if (naive_.free_slot() < 0 && !make_room()) return;
  ++counts_.calls;
  int32_t slot = -1, count = 0;
  const pkv_status status =
      pkv_cache_load_sync(world_.cache(), world_.stream(), path_of(talk).c_str(), 1, &slot, &count);
  if (status == PKV_RESOURCE_EXHAUSTED) {
    ++counts_.out_of_memory;
    talk.wake = now_ + between(10, 50);
    return;
  }
  check(status);
  ++counts_.loads;
  if (count != 1 || slot != naive_.put(std::move(talk.kept))) {
    throw Mismatch(fmt::format("a load gave {} sequences, the first in slot {}", count, slot));
  }
  talk.slot = slot;
  talk.state = talk.then;
  if (talk.state == State::kResting) talk.wake = now_;
  std::filesystem::remove(path_of(talk));
  for (int32_t layer = 0; layer < world_.shape().layers; ++layer) {
    judge_rows(world_, naive_, layer, slot, 0, naive_.layer(layer, slot).tokens());
  }
}

void Serving::remove(Talk& talk) {
  ++counts_.calls;
  ++counts_.removed;
  world_.remove(talk.slot);
  naive_.remove(talk.slot);
  talk.slot = -2;
  talk.state = State::kResting;
  talk.wake = INT64_MAX;
}

void Serving::look() {
  judge_use(world_, naive_);
  for (const int32_t sequence : naive_.live()) judge_regions(world_, naive_, sequence);
}

void Serving::finish() {
  for (const int32_t sequence : naive_.live()) world_.remove(sequence);
  const pkv_cache_usage usage = world_.usage();
  const auto none = [](const char* what, int64_t bytes) {
    if (bytes != 0) throw Mismatch(fmt::format("{} held by no one: {} bytes", what, bytes));
  };
  none("row_pages", usage.row_pages);
  none("record_pages", usage.record_pages);
  none("samples", usage.samples);
  none("shared_pages", world_.stats().shared_pages);
}

}  // namespace pkv::soak
