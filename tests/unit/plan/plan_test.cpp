// Plan: what is checked and sized once. Not here: the step (tests/unit/pipeline).
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

struct Setup {
  explicit Setup(const Options& options = {{"head_dim", "16"}, {"k", "10"}, {"tail", "mean"}},
                 int32_t sequences = 4, int64_t capacity = 1000)
      : config(config_of(options)),
        index(value_of(
            Index::create(machine.device, codec_of(machine, config, 2), sequences, capacity))) {
    desc.batch = 2;
    desc.query_heads = 4;
  }
  absl::StatusOr<std::unique_ptr<Plan>> plan() const { return Plan::create(index, config, desc); }

  Machine machine;
  Config config;
  std::shared_ptr<Index> index;
  pkv_plan_desc desc{};
};

}  // namespace

TEST_CASE("plan: an option of the codec that differs is named with both values") {
  Setup setup;
  struct Case {
    const char* name;
    const char* value;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {"head_dim", "24", {"head_dim", "24", "16"}},
      {"value_dim", "8", {"value_dim", "8", "16"}},
      {"v_source", "k_prefix", {"v_source"}},
      {"codec", "polar4", {"codec", "1", "2"}},
      {"vote", "tier", {"vote", "1", "2"}},
      {"rounds", "2", {"rounds", "2", "1"}},
      {"tail", "sketch2", {"tail", "2", "0"}},
      {"value_norm", "on", {"value_norm", "1", "0"}},
      {"seed", "99", {"seed", "99"}},
      {"center", "off", {"center", "off", "on"}},
      {"balance", "off", {"balance", "off", "on"}},
      {"tail", "sampled", {"tail", "4", "0"}},
      {"fit", "keys", {"fit", "keys", "picked"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    Config config = setup.config;
    require_ok(config.set(c.name, c.value));
    const absl::Status status = Plan::create(setup.index, config, setup.desc).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    const std::string text = text_of(status);
    CAPTURE(text);
    for (const std::string& part : c.parts) CHECK(contains(text, part));
  }
  Setup sketch({{"head_dim", "16"}, {"tail", "sketch4"}});
  check_refused(Plan::create(sketch.index, config_of({{"head_dim", "16"}}), sketch.desc).status(),
                absl::StatusCode::kFailedPrecondition, {"tail (stride of the sketch)", "16", "1"});
  // A tail that reads no sketch goes with a codec that has one.
  for (const char* tail : {"drop", "mean"}) {
    const Config config = config_of({{"head_dim", "16"}, {"tail", tail}});
    require_ok(Plan::create(sketch.index, config, sketch.desc).status());
  }
  // Options of the step and of append may differ.
  Config config = setup.config;
  for (const auto& [name, value] : Options{{"k", "3"},
                                           {"candidates", "0.5"},
                                           {"rank", "mean"},
                                           {"tail", "drop"},
                                           {"nonfinite", "isolate"}}) {
    require_ok(config.set(name, value));
  }
  require_ok(Plan::create(setup.index, config, setup.desc).status());
}

TEST_CASE("plan: an option that the plan does not use is refused") {
  Setup setup({{"head_dim", "16"}, {"k_min", "5"}});
  check_refused(setup.plan().status(), absl::StatusCode::kInvalidArgument, {"k_min", "share"});
  Setup samples({{"head_dim", "16"}, {"tail", "drop"}, {"tail_samples", "64"}});
  check_refused(samples.plan().status(), absl::StatusCode::kInvalidArgument, {"tail_samples"});
}

TEST_CASE("plan: every number of the description has a range") {
  Setup setup;
  const auto refused = [&](auto change, absl::StatusCode code,
                           std::initializer_list<std::string_view> parts) {
    Setup one;
    change(one.desc);
    check_refused(one.plan().status(), code, parts);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  refused([](auto& d) { d.batch = -1; }, invalid, {"batch=-1", "0..65535"});
  refused([](auto& d) { d.batch = 65536; }, invalid, {"batch=65536"});
  refused([](auto& d) { d.batch = 5; }, invalid, {"batch", "5", "0..4"});
  refused([](auto& d) { d.query_heads = 0; }, invalid, {"query_heads=0"});
  refused([](auto& d) { d.query_heads = 3; }, invalid, {"query_heads=3", "kv_heads=2"});
  refused([](auto& d) { d.query_heads = 258; }, invalid, {"query_heads=258", "1..128"});
  refused([](auto& d) { d.owns_scratch = 2; }, invalid, {"owns_scratch=2"});
  refused([](auto& d) { d.max_tokens = -1; }, invalid, {"max_tokens=-1"});
  refused([](auto& d) { d.max_tokens = 1001; }, invalid, {"max_tokens=1001", "0..1000"});
  static const int32_t outside[2] = {0, 4};
  refused([](auto& d) { d.sequences = outside; }, absl::StatusCode::kOutOfRange,
          {"sequences[1]=4", "0..3"});
  static const int32_t negative[2] = {-1, 0};
  refused([](auto& d) { d.sequences = negative; }, absl::StatusCode::kOutOfRange,
          {"sequences[0]=-1"});
  setup.desc.query_heads = 256;
  require_ok(setup.plan().status());
}

TEST_CASE("plan: candidates is the most of any length, also where a step of the schedule drops") {
  Setup setup({{"head_dim", "16"}, {"k", "10"}}, 1, 200000);
  setup.desc.batch = 1;
  const auto candidates = [&](int64_t max_tokens) {
    setup.desc.max_tokens = max_tokens;
    return value_of(setup.plan())->candidates();
  };
  CHECK(candidates(1000) == 100);
  CHECK(candidates(16384) == 1639);   // 5 % of 16,384 is 820
  CHECK(candidates(32767) == 1639);   // ceil(5 %)
  CHECK(candidates(32768) == 1639);   // 2 % of 32,768 is 656
  CHECK(candidates(131071) == 2622);  // ceil(2 %)
  CHECK(candidates(200000) == 2622);  // 1 % is 2,000
  CHECK(candidates(3) == 3);
}

TEST_CASE("plan: the scratch that is announced lies in order, aligned and apart") {
  for (const char* tail : {"drop", "mean", "sampled"}) {
    Setup setup({{"head_dim", "16"}, {"k", "10"}, {"tail", tail}});
    const int32_t reversed[2] = {2, 1};
    for (const int32_t* sequences : {static_cast<const int32_t*>(nullptr), &reversed[0]}) {
      setup.desc.sequences = sequences;
      const auto plan = value_of(setup.plan());
      for (const ScratchLedger* ledger : {&plan->retrieve_scratch(), &plan->attend_scratch()}) {
        std::vector<char> memory(static_cast<std::size_t>(ledger->bytes()) + 1);
        int64_t end = 0;
        int pieces = 0;
        for (std::size_t i = 0; i < kPieceNames.size(); ++i) {
          const auto piece = static_cast<Piece>(i);
          const char* at = ledger->get<char>(memory.data(), piece);
          CHECK((at == nullptr) == (ledger->bytes(piece) == 0));
          if (at == nullptr) continue;
          CHECK((at - memory.data()) % 256 == 0);
          CHECK(at - memory.data() >= end);
          end = at - memory.data() + ledger->bytes(piece);
          ++pieces;
        }
        CHECK(end <= ledger->bytes());
        CHECK(pieces >= 1);
        CHECK(plan->scratch_bytes() >= ledger->bytes());
        CHECK((ledger->bytes(Piece::kLengths) > 0) == (sequences != nullptr));
      }
      // Candidates are the caller's as soon as a tail needs them.
      CHECK((plan->retrieve_scratch().bytes(Piece::kCandidates) > 0) ==
            (std::string(tail) == "drop"));
    }
  }
}

TEST_CASE("plan: scratch is checked, and the plan's own is nobody else's business") {
  Setup setup;
  const auto plan = value_of(setup.plan());
  alignas(256) static char memory[1 << 20];
  REQUIRE(plan->scratch_bytes() < int64_t{sizeof memory});
  CHECK(value_of(plan->scratch(memory)) == memory);
  check_refused(plan->scratch(nullptr).status(), absl::StatusCode::kInvalidArgument,
                {"scratch=NULL", std::to_string(plan->scratch_bytes())});
  check_refused(plan->scratch(memory + 64).status(), absl::StatusCode::kInvalidArgument,
                {"aligned", "256"});
  setup.desc.owns_scratch = 1;
  const auto owner = value_of(setup.plan());
  CHECK(value_of(owner->scratch(nullptr)) != nullptr);
  check_refused(owner->scratch(memory).status(), absl::StatusCode::kInvalidArgument, {"owns"});
  const auto busy = value_of(Plan::Busy::enter(*owner));
  check_refused(Plan::Busy::enter(*owner).status(), absl::StatusCode::kAborted, {"busy"});
  require_ok(Plan::Busy::enter(*plan).status());
}

TEST_CASE("plan: a size past 2^63 is refused with its factors") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"k", "65536"}, {"candidates", "1"}});
  ScratchLedger ledger;
  require_ok(ledger.book(Piece::kVotes, INT64_MAX - 255));
  check_refused(ledger.book(Piece::kScores, 512), absl::StatusCode::kResourceExhausted,
                {"scores", "512"});
}

TEST_CASE("ledger: stages share one place, as large as the largest") {
  ScratchLedger ledger;
  require_ok(ledger.book(Piece::kVotes, 100));
  require_ok(ledger.book_shared(Piece::kStage, 300));
  require_ok(ledger.book_shared(Piece::kStage, 1000));
  require_ok(ledger.book_shared(Piece::kStage, 10));
  CHECK(ledger.bytes() == 256 + 1024);
  CHECK(ledger.bytes(Piece::kStage) == 1000);
}

TEST_CASE("plan: an outgrown plan says so") {
  Setup setup;
  setup.desc.max_tokens = 20;
  const auto plan = value_of(setup.plan());
  Array keys({2, 21, 16});
  fill_random(keys.numbers(), 1);
  const Tokens most(keys, 0, 20);
  require_ok(
      setup.index->append(setup.machine.stream, 1, most.tensor, nullptr, Index::Mode::kSync));
  require_ok(plan->check_lengths());
  const Tokens more(keys, 20, 1);
  // Sequence 3 is none of the plan's.
  require_ok(
      setup.index->append(setup.machine.stream, 3, keys.tensor(), nullptr, Index::Mode::kSync));
  require_ok(plan->check_lengths());
  require_ok(
      setup.index->append(setup.machine.stream, 1, more.tensor, nullptr, Index::Mode::kSync));
  check_refused(plan->check_lengths(), absl::StatusCode::kFailedPrecondition,
                {"sequence 1", "21", "max_tokens=20"});
}

TEST_CASE("plan: the description names shape, options, backend and scratch") {
  Setup setup;
  const auto plan = value_of(setup.plan());
  const std::string text = plan->describe();
  CAPTURE(text);
  for (const std::string& part :
       {std::string("\"batch\": 2"), std::string("\"candidates\": 100"),
        std::string("\"tail\": \"mean\""), std::string("\"backend\": \"cpu_ref\""),
        "\"bytes\": " + std::to_string(plan->scratch_bytes())}) {
    CHECK(contains(text, part));
  }
  CHECK(std::count(text.begin(), text.end(), '{') == std::count(text.begin(), text.end(), '}'));
}

}  // namespace pkv::test
