// What is enqueued runs later: nothing lent for a call is used after it, calls do not wait or
// allocate unless they say so, and a failure anywhere leaves everything as it was.
#include "tests/unit/index/file_tools.h"
#include "tests/unit/pipeline/deferred_backend.h"
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {
namespace {

const Options kOptions = {{"head_dim", "8"}, {"vote", "tier"}, {"k", "6"}, {"tail", "sketch2"}};

// Appends made of memory that is gone right after; the keys are kept, as a stream needs them.
void append_some(const Machine& machine, Index& index, Zone& zone, Index::Mode mode) {
  for (std::size_t s = 0; s < zone.lengths.size(); ++s) {
    for (int64_t begin = 0; begin < zone.lengths[s]; begin += 7) {
      auto keys = std::make_unique<Zone::View>();
      auto values = std::make_unique<Zone::View>();
      const int64_t count = std::min<int64_t>(7, zone.lengths[s] - begin);
      Zone::view(zone.keys, s, begin, count, *keys);
      Zone::view(zone.values, s, begin, count, *values);
      require_ok(index.append(machine.stream, static_cast<int32_t>(s), keys->tensor,
                              &values->tensor, mode));
    }
  }
}

std::shared_ptr<Index> filled_index(const Machine& machine, Zone& zone, int64_t capacity,
                                    Index::Mode mode) {
  const auto index =
      value_of(Index::create(machine.device, codec_of(machine, config_of(kOptions), 2),
                             static_cast<int32_t>(zone.lengths.size()), capacity));
  append_some(machine, *index, zone, mode);
  return index;
}

}  // namespace

TEST_CASE("deferred: a whole step enqueued at once equals one that waits at each call") {
  Zone zone({40, 0, 25}, 2, 40, 8, 8);
  Array query({2, 4, 8});
  fill_random(query.numbers(), 5);
  std::vector<int64_t> part_lengths = {5, 40};
  for (const std::vector<int32_t>& sequences :
       {std::vector<int32_t>{0, 1}, std::vector<int32_t>{2, 0}}) {
    const auto run = [&](Step& step) {
      pkv_dense dense{};
      Array part_keys({2, 2, 40, 8}, 0.25F), part_values({2, 2, 40, 8}, 0.5F);
      dense.rows.keys = part_keys.tensor();
      dense.rows.values = part_values.tensor();
      dense.lengths = part_lengths.data();
      require_ok(step.retrieve(query));
      require_ok(step.fetch(zone));
      require_ok(step.attend(query, {dense}));
      require_ok(step.machine.stream.sync());
    };
    Machine now;
    Step reference(now, filled_index(now, zone, 64, Index::Mode::kSync), config_of(kOptions),
                   sequences, 4);
    run(reference);
    Machine later(open_deferred());
    Step step(later, filled_index(later, zone, 64, Index::Mode::kEnqueue), config_of(kOptions),
              sequences, 4);
    run(step);
    CHECK(step.positions->values() == reference.positions->values());
    CHECK(step.row_keys->numbers() == reference.row_keys->numbers());
    CHECK(step.output->numbers() == reference.output->numbers());
    CHECK(step.lse->values() == reference.lse->values());
    CHECK((content_of(later, *step.index) == content_of(now, *reference.index)));
  }
}

TEST_CASE("deferred: append, reset, retrieve and attend neither wait nor allocate") {
  Machine machine(open_deferred());
  Zone zone({40, 25}, 2, 40, 8, 8);
  const auto index = filled_index(machine, zone, 64, Index::Mode::kSync);
  Step step(machine, index, config_of(kOptions), {1, 0}, 4);
  Array query({2, 4, 8});
  fill_random(query.numbers(), 5);
  const DeferredFaults before = deferred_faults();
  Zone::View keys, values;
  Zone::view(zone.keys, 0, 0, 3, keys);
  Zone::view(zone.values, 0, 0, 3, values);
  require_ok(index->append(machine.stream, 1, keys.tensor, &values.tensor, Index::Mode::kEnqueue));
  require_ok(index->reset(machine.stream, 0));
  require_ok(step.retrieve(query));
  require_ok(step.attend(query));
  CHECK(deferred_faults().waits == before.waits);
  CHECK(deferred_faults().allocations == before.allocations);
  // With host memory, fetch looks at the positions first.
  require_ok(step.fetch(zone));
  CHECK(deferred_faults().waits == before.waits + 1);
  CHECK(deferred_faults().allocations == before.allocations);
  require_ok(machine.stream.sync());
  CHECK(step.counts->values() == std::vector<int32_t>{6, 6, 0, 0});
}

TEST_CASE("deferred: an append waits, on its stream, for the one before: they share scratch") {
  Machine machine(open_deferred());
  Zone zone({14}, 2, 14, 8, 8);
  const auto index =
      value_of(Index::create(machine.device, codec_of(machine, config_of(kOptions), 2), 1, 64));
  const Stream other = value_of(Stream::create(machine.device));
  Zone::View keys, values;
  Zone::view(zone.keys, 0, 0, 14, keys);
  Zone::view(zone.values, 0, 0, 14, values);
  int waits = 0;
  const Stream* const streams[] = {&machine.stream, &other, &machine.stream};
  for (const Stream* stream : streams) {
    require_ok(index->append(*stream, 0, keys.tensor, &values.tensor, Index::Mode::kEnqueue));
    CHECK(deferred_faults().event_waits == waits++);
  }
}

TEST_CASE("deferred: fit and load give the same codec and index") {
  Folder folder;
  Zone zone({40, 25}, 2, 40, 8, 8);
  Machine now;
  const auto saved = filled_index(now, zone, 64, Index::Mode::kSync);
  require_ok(saved->save_sync(now.stream, folder.file("now"), false));
  Zone::View keys, values;
  Zone::view(zone.keys, 0, 0, 40, keys);
  Zone::view(zone.values, 0, 0, 40, values);
  const auto fit = [&](const Machine& machine) {
    return value_of(
        Codec::fit_sync(machine.stream, config_of(kOptions), keys.tensor, nullptr, &values.tensor));
  };
  const auto reference = fit(now);
  Machine later(open_deferred());
  const auto codec = fit(later);
  const auto same = [](std::span<const float> a, std::span<const float> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  CHECK(same(codec->numbers().center(), reference->numbers().center()));
  CHECK(same(codec->numbers().value_center(), reference->numbers().value_center()));
  const auto loaded = value_of(Index::load_sync(later.device, later.stream, folder.file("now")));
  CHECK((content_of(later, *loaded) == content_of(now, *saved)));
  require_ok(loaded->save_sync(later.stream, folder.file("later"), false));
  CHECK((read_file(folder.file("later")) == read_file(folder.file("now"))));
}

TEST_CASE("deferred: an append that fails at any call leaves the index as it was") {
  Zone zone({20}, 2, 20, 8, 8);
  // Two chunks of keys.
  Array keys({2, 9000, 8}), values({2, 9000, 8});
  fill_random(keys.numbers(), 1);
  fill_random(values.numbers(), 2);
  const pkv_tensor value_tensor = values.tensor();
  for (const Index::Mode mode : {Index::Mode::kEnqueue, Index::Mode::kSync}) {
    Machine machine(open_deferred());
    const auto index = filled_index(machine, zone, 10000, mode);
    const std::string before = content_of(machine, *index);
    const auto append = [&] {
      return index->append(machine.stream, 0, keys.tensor(), &value_tensor, mode);
    };
    int refused = 0;
    for (int DeferredFaults::*fault :
         {&DeferredFaults::fail_encode, &DeferredFaults::fail_copy, &DeferredFaults::fail_sync}) {
      for (int i = 1; i <= 3; ++i) {
        deferred_faults().*fault = i;
        const absl::Status status = append();
        const bool has_failed = deferred_faults().*fault == 0;
        deferred_faults().*fault = 0;
        CHECK(status.ok() == !has_failed);
        if (!has_failed) {
          require_ok(index->reset(machine.stream, 0));
          append_some(machine, *index, zone, mode);
        } else {
          CHECK(status.code() == absl::StatusCode::kUnavailable);
          ++refused;
        }
        CHECK((content_of(machine, *index) == before));
      }
    }
    CHECK(refused >= 5);
    require_ok(append());
    CHECK(index->length(0) == 9020);
  }
}

TEST_CASE("deferred: a restore that fails at any call leaves the index as it was") {
  Folder folder;
  Zone zone({30, 11}, 2, 40, 8, 8);
  Zone other({5, 40}, 2, 40, 8, 8);
  Machine machine(open_deferred());
  const auto saved = filled_index(machine, zone, 64, Index::Mode::kSync);
  const auto used = filled_index(machine, other, 64, Index::Mode::kSync);
  require_ok(saved->save_sync(machine.stream, folder.file("a"), false));
  const std::string before = content_of(machine, *used);
  int refused = 0;
  for (int DeferredFaults::*fault : {&DeferredFaults::fail_alloc, &DeferredFaults::fail_copy,
                                     &DeferredFaults::fail_import, &DeferredFaults::fail_sync}) {
    for (int i = 1; i < 1000; ++i) {
      deferred_faults().*fault = i;
      const absl::Status status = used->restore_sync(machine.stream, folder.file("a"));
      const bool has_failed = deferred_faults().*fault == 0;
      deferred_faults().*fault = 0;
      CHECK(status.ok() == !has_failed);
      if (!has_failed) break;
      ++refused;
      CHECK((content_of(machine, *used) == before));
    }
    CHECK((content_of(machine, *used) == content_of(machine, *saved)));
    for (const int32_t s : {0, 1}) require_ok(used->reset(machine.stream, s));
    append_some(machine, *used, other, Index::Mode::kSync);
    CHECK((content_of(machine, *used) == before));
  }
  CHECK(refused > 30);
}

TEST_CASE("deferred: a save that fails at any call leaves no file, and the old one as it was") {
  Folder folder;
  Zone zone({30, 11}, 2, 40, 8, 8);
  Machine machine(open_deferred());
  const auto index = filled_index(machine, zone, 64, Index::Mode::kSync);
  write_file(folder.file("old"), "old");
  int refused = 0;
  for (int DeferredFaults::*fault : {&DeferredFaults::fail_alloc, &DeferredFaults::fail_copy,
                                     &DeferredFaults::fail_export, &DeferredFaults::fail_sync}) {
    for (int i = 1; i < 1000; ++i) {
      deferred_faults().*fault = i;
      const absl::Status status = index->save_sync(machine.stream, folder.file("old"), true);
      const bool has_failed = deferred_faults().*fault == 0;
      deferred_faults().*fault = 0;
      CHECK(status.ok() == !has_failed);
      if (!has_failed) break;
      ++refused;
      CHECK(read_file(folder.file("old")) == "old");
      CHECK(folder.names().size() == 1);
    }
    write_file(folder.file("old"), "old");
  }
  CHECK(refused > 15);
}

TEST_CASE("deferred: with a device's memory, fetch checks what the host knows and does not wait") {
  DeferredFaults cuda;
  cuda.device_type = PKV_DEVICE_CUDA;
  Machine machine(open_deferred(cuda));
  Zone zone({40, 25}, 2, 40, 8, 8);
  const Config config = config_of({{"head_dim", "8"}, {"k", "6"}, {"tail", "drop"}});
  const auto index = value_of(Index::create(machine.device, codec_of(machine, config, 2), 2, 64));
  for (std::size_t s = 0; s < 2; ++s) {
    Zone::View keys;
    Zone::view(zone.keys, s, 0, zone.lengths[s], keys);
    // Host memory is none that this device can read.
    check_refused(index->append(machine.stream, static_cast<int32_t>(s), keys.tensor, nullptr,
                                Index::Mode::kSync),
                  absl::StatusCode::kInvalidArgument, {"keys", "cpu", "cuda"});
    keys.tensor.device_type = PKV_DEVICE_CUDA;
    require_ok(index->append(machine.stream, static_cast<int32_t>(s), keys.tensor, nullptr,
                             Index::Mode::kSync));
  }
  for (const std::vector<int32_t>& sequences :
       {std::vector<int32_t>{0, 1}, std::vector<int32_t>{1, 0}}) {
    Step step(machine, index, config, sequences, 2);
    Array query({2, 2, 8});
    fill_random(query.numbers(), 5);
    require_ok(retrieve(*step.plan, machine.stream, query.tensor(PKV_DEVICE_CUDA),
                        step.scratch_memory(), step.hits));
    pkv_rows source{}, rows{};
    source.keys = zone.keys.tensor(PKV_DEVICE_CUDA_HOST);
    rows.keys = step.row_keys->tensor(PKV_DEVICE_CUDA);
    const int waits = deferred_faults().waits;
    require_ok(fetch(*step.plan, machine.stream, source, step.hits, rows));
    CHECK(deferred_faults().waits == waits);
    require_ok(machine.stream.sync());
    const int32_t position = step.positions->values()[0];
    const float* wanted = zone.keys.data() + (int64_t{sequences[0]} * 2 * 40 + position) * 8;
    CHECK(std::equal(wanted, wanted + 8, step.row_keys->data()));
    Array shorter({2, 2, 39, 8});
    source.keys = shorter.tensor(PKV_DEVICE_CUDA);
    check_refused(fetch(*step.plan, machine.stream, source, step.hits, rows),
                  absl::StatusCode::kOutOfRange, {"n=39", "40", "sequence 0"});
  }
}

TEST_CASE("deferred: what a backend cannot do is said in time") {
  Zone zone({40}, 2, 40, 8, 8);
  Array query({1, 2, 8}, 0.5F);
  {
    DeferredFaults faults;
    faults.fetch_scratch = 256;
    Machine machine(open_deferred(faults));
    Step step(machine, filled_index(machine, zone, 64, Index::Mode::kSync), config_of(kOptions),
              {0}, 2);
    require_ok(step.retrieve(query));
    check_refused(step.fetch(zone), absl::StatusCode::kUnimplemented, {"fetch", "256"});
  }
  {
    DeferredFaults faults;
    faults.refuses_f16 = true;
    Machine machine(open_deferred(faults));
    Step step(machine, filled_index(machine, zone, 64, Index::Mode::kSync), config_of(kOptions),
              {0}, 2);
    require_ok(step.retrieve(query));
    pkv_tensor halves = query.tensor();
    halves.dtype = PKV_DTYPE_F16;
    check_refused(retrieve(*step.plan, machine.stream, halves, step.scratch_memory(), step.hits),
                  absl::StatusCode::kUnimplemented, {"deferred", "vote"});
  }
  {
    DeferredFaults faults;
    faults.attend_scratch = 64;
    Machine machine(open_deferred(faults));
    Step step(machine, filled_index(machine, zone, 64, Index::Mode::kSync), config_of(kOptions),
              {0}, 2);
    const auto attend_over = [&](int64_t tokens) {
      Array keys({1, 2, tokens, 8}), values({1, 2, tokens, 8});
      pkv_dense dense{};
      dense.rows.keys = keys.tensor();
      dense.rows.values = values.tensor();
      const absl::Status status = step.attend(query, {dense}, false);
      require_ok(machine.stream.sync());
      return status;
    };
    require_ok(attend_over(4096));
    require_ok(attend_over(4 * 4096));
    check_refused(attend_over(5 * 4096), absl::StatusCode::kResourceExhausted,
                  {"dense parts too long", "scratch"});
  }
}

}  // namespace pkv::test
