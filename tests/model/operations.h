// Random operations on a cache and on its naive model, compared after each. An operation is a kind
// and four random words; what they mean depends on the state it meets, so any subsequence of a
// sequence of operations is one too, and failing ones can be shortened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/model/naive.h"
#include "tests/model/world.h"

namespace pkv::cache_model {

enum class Kind {
  kAdd,
  kRemove,
  kReset,
  kAppend,
  kAppendLayer,
  kDecode,
  kTruncate,
  kFork,
  kRefit,
  kFlush,
  kSaveOne,
  kSaveAll,
  kRefused,
  kStale,
};

struct Operation {
  Kind kind;
  uint64_t words[4];
};

std::vector<Operation> random_operations(uint64_t seed, int64_t count);

class Runner {
 public:
  // Files lie in `folder`. Deep checks after every `deep_every`-th operation.
  Runner(Machine& machine, const Shape& shape, std::filesystem::path folder, int64_t deep_every);

  // Throws Mismatch or pkv::Error.
  void apply(const Operation& operation);
  // What the last operation was, in words.
  const std::string& last() const { return last_; }
  int64_t appended() const { return appended_; }
  // Removes all sequences; no page may be left in use.
  void finish();

 private:
  void add();
  void remove(const Operation& operation);
  void append(const Operation& operation);
  void append_layer(const Operation& operation);
  void decode(const Operation& operation);
  void truncate(const Operation& operation);
  void fork(const Operation& operation);
  void refit(const Operation& operation);
  void save_one(const Operation& operation);
  void save_all();
  void flush_loaded(World& world);
  void refused(const Operation& operation);
  void stale(const Operation& operation);
  void compare(const Operation& operation);

  // One of those in use; -1: none is.
  int32_t pick(uint64_t word) const;
  Parts pick_parts(uint64_t word, int64_t most_sequences, int64_t tokens) const;
  std::vector<uint64_t> fresh(uint64_t word, int64_t count) const;
  int64_t chunk(uint64_t word) const;
  void expect(pkv_status status, pkv_status expected, const char* what) const;
  // OK, or for caches of limited bytes RESOURCE_EXHAUSTED; whether it was OK.
  bool is_done(pkv_status status, const char* what) const;

  Machine& machine_;
  Shape shape_;
  std::filesystem::path folder_;
  int64_t deep_every_;
  std::shared_ptr<KeptRows> rows_ = std::make_shared<KeptRows>();
  std::unique_ptr<World> world_;
  Naive naive_;
  std::string last_;
  int64_t applied_ = 0;
  int64_t appended_ = 0;
};

}  // namespace pkv::cache_model
