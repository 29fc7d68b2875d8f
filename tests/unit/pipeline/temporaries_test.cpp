// Device memory of one operation, on a device that works later.
#include "core/runtime/temporaries.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/checked.h"
#include "tests/conformance/random.h"
#include "tests/unit/pipeline/deferred_backend.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

TEST_CASE(
    "temporaries: pieces lie apart and aligned; what is lent lies apart from what was taken") {
  const Stream stream = value_of(Stream::create(open_deferred()));
  conformance::Random random(7);
  for (const int64_t expected : {0, 1000, 1 << 20}) {
    CAPTURE(expected);
    Temporaries memory(stream, expected);
    using Piece = std::pair<std::byte*, int64_t>;
    std::vector<Piece> taken;
    const auto lies_apart = [&](const Piece& piece) {
      return std::all_of(taken.begin(), taken.end(), [&](const Piece& other) {
        return piece.first + piece.second <= other.first ||
               other.first + other.second <= piece.first;
      });
    };
    for (int i = 0; i < 200; ++i) {
      const auto bytes = static_cast<int64_t>(1 + random.below(i % 10 == 0 ? 300000 : 3000));
      const bool is_lent = random.below(2) == 0;
      const Piece piece{value_of(is_lent ? memory.lend(bytes) : memory.take(bytes)), bytes};
      CHECK(reinterpret_cast<uintptr_t>(piece.first) % kAlignment == 0);
      CHECK(lies_apart(piece));
      std::memset(piece.first, i, static_cast<std::size_t>(bytes));
      if (!is_lent) taken.push_back(piece);
    }
    CHECK(value_of(memory.take(0)) == nullptr);
    CHECK(value_of(memory.lend(0)) == nullptr);
  }
}

TEST_CASE("temporaries: given back behind the work that uses them") {
  const Stream stream = value_of(Stream::create(open_deferred()));
  int found = 0;
  {
    Temporaries memory(stream);
    int* const piece = value_of(memory.take<int>("numbers", {{"count", 1}}));
    *piece = 17;
    require_ok(stream.copy(&found, piece, sizeof found));
    CHECK(found == 0);
  }
  CHECK(found == 17);
}

TEST_CASE("temporaries: too many numbers are refused by name") {
  const Stream stream = value_of(Stream::create(open_deferred()));
  Temporaries memory(stream);
  const auto refused = memory.take<double>("votes", {{"rows", INT64_MAX / 4}, {"keys", 2}});
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(refused.status().message()).find("votes") != std::string::npos);
}

}  // namespace
}  // namespace pkv::test
