// HostNumbers in host memory, on a device that works later: one piece of memory for the numbers of
// many calls, none written again before what reads it has run.
#include <algorithm>
#include <cstring>

#include "core/cache/host_numbers.h"
#include "tests/unit/pipeline/deferred_backend.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

constexpr std::size_t kCount = 2500;  // 20,000 bytes: three of them fill the ring of 64 KiB

TEST_CASE(
    "numbers: three blocks behind a stalled stream keep their own, and the fourth one waits") {
  const std::shared_ptr<const Device> device = open_deferred();
  const Stream stream = value_of(Stream::create(device));
  HostNumbers numbers = value_of(HostNumbers::create(device, {4, 1, 64, 1, 64}));
  Words words;
  std::vector<std::vector<int64_t>> copies(8, std::vector<int64_t>(kCount, -1));
  const auto bytes = static_cast<int64_t>(kCount * sizeof(int64_t));
  const int waits = deferred_faults().waits;
  for (std::size_t block = 0; block < copies.size(); ++block) {
    CAPTURE(block);
    std::vector<int64_t> source(kCount, static_cast<int64_t>(100 + block));
    const int64_t* staged = value_of(numbers.put(stream, words, source));
    std::fill(source.begin(), source.end(), -2);  // lent for the call alone
    require_ok(stream.copy(copies[block].data(), staged, bytes));
    CHECK(deferred_faults().waits == waits + static_cast<int>(block / 3));
    for (std::size_t done = 0; done < copies.size(); ++done) {
      const bool has_run = done < block / 3 * 3;
      CHECK(copies[done] ==
            std::vector<int64_t>(kCount, has_run ? static_cast<int64_t>(100 + done) : -1));
    }
  }
  require_ok(stream.sync());
  for (std::size_t block = 0; block < copies.size(); ++block) {
    CHECK(copies[block] == std::vector<int64_t>(kCount, static_cast<int64_t>(100 + block)));
  }
}

TEST_CASE("numbers: a block larger than the ring waits for those before, and gets a larger ring") {
  const std::shared_ptr<const Device> device = open_deferred();
  const Stream stream = value_of(Stream::create(device));
  HostNumbers numbers = value_of(HostNumbers::create(device, {4, 1, 64, 1, 64}));
  Words words;
  const std::vector<int64_t> small(kCount, 5), large(5 * kCount, 6);
  std::vector<int64_t> first(small.size(), -1), second(large.size(), -1), third(small.size(), -1);
  const auto stage = [&](const std::vector<int64_t>& source, std::vector<int64_t>& target) {
    const int64_t* staged = value_of(numbers.put(stream, words, source));
    require_ok(
        stream.copy(target.data(), staged, static_cast<int64_t>(source.size() * sizeof(int64_t))));
  };
  const int waits = deferred_faults().waits;
  stage(small, first);
  stage(large, second);
  CHECK(deferred_faults().waits > waits);
  CHECK(first == small);
  const int after = deferred_faults().waits;
  stage(small, third);  // beside the large one: there is room for twice as much
  CHECK(deferred_faults().waits == after);
  require_ok(stream.sync());
  CHECK(second == large);
  CHECK(third == small);
}

}  // namespace
}  // namespace pkv::test
