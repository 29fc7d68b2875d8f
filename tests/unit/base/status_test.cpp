#include "core/base/status.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/text.h"

namespace pkv {
namespace {

constexpr pkv_status kAll[] = {PKV_OK,
                               PKV_CANCELLED,
                               PKV_INVALID_ARGUMENT,
                               PKV_NOT_FOUND,
                               PKV_ALREADY_EXISTS,
                               PKV_RESOURCE_EXHAUSTED,
                               PKV_ABORTED,
                               PKV_FAILED_PRECONDITION,
                               PKV_OUT_OF_RANGE,
                               PKV_UNIMPLEMENTED,
                               PKV_INTERNAL,
                               PKV_UNAVAILABLE,
                               PKV_DATA_LOSS};

TEST_CASE("status: the numbers are Abseil's, both ways, and texts survive") {
  for (const pkv_status number : kAll) {
    const absl::Status status = from_pkv(number, "text");
    CHECK(static_cast<int>(status.code()) == number);
    CHECK(to_pkv(status.code()) == number);
    CHECK(to_std(status.message()) == (number == PKV_OK ? "" : "text"));
    CHECK(absl::StatusCodeToString(status.code()) == status_name(number));
  }
  CHECK(to_pkv(absl::StatusCode::kNotFound) == PKV_NOT_FOUND);
  CHECK(to_pkv(absl::StatusCode::kDataLoss) == PKV_DATA_LOSS);
}

TEST_CASE("status: what is none of ours becomes INTERNAL, and says so") {
  CHECK(to_pkv(absl::StatusCode::kUnknown) == PKV_INTERNAL);
  CHECK(to_pkv(absl::StatusCode::kDeadlineExceeded) == PKV_INTERNAL);
  for (const pkv_status number : {-1, 2, 4, 7, 16, 99}) {
    CHECK(std::string(status_name(number)) == "UNKNOWN");
    const absl::Status status = from_pkv(number, "what it said");
    CHECK(status.code() == absl::StatusCode::kInternal);
    const std::string text(to_std(status.message()));
    CHECK(text.find(std::to_string(number)) != std::string::npos);
    CHECK(text.find("what it said") != std::string::npos);
  }
  CHECK(to_std(from_pkv(99, "").message()) == "status 99 is none of the known ones");
}

TEST_CASE("last_error: report leaves the text, OK leaves it alone") {
  set_last_error("");
  CHECK(std::string(last_error()).empty());
  CHECK(report(absl::InvalidArgumentError("k=-1, accepted: 0..65536")) == PKV_INVALID_ARGUMENT);
  CHECK(std::string(last_error()) == "k=-1, accepted: 0..65536");
  CHECK(report(absl::OkStatus()) == PKV_OK);
  CHECK(std::string(last_error()) == "k=-1, accepted: 0..65536");
}

TEST_CASE("last_error: every thread has its own") {
  set_last_error("mine");
  std::string theirs = "unset";
  std::thread other([&theirs] {
    theirs = last_error();
    set_last_error("other");
  });
  other.join();
  CHECK(theirs.empty());
  CHECK(std::string(last_error()) == "mine");
}

TEST_CASE(
    "last_error: a long text is cut between characters, and the buffer may be its own source") {
  static_assert(kLastErrorBytes >= 1024);
  const std::size_t room = kLastErrorBytes - 1;
  set_last_error(std::string(room, 'a'));
  CHECK(std::string(last_error()).size() == room);
  set_last_error(std::string(room + 1, 'a'));
  CHECK(std::string(last_error()).size() == room);

  // "\xe2\x82\xac" is the euro sign: 3 bytes. Its start lies 0, 1, 2 or 3 bytes before the end.
  for (std::size_t inside = 0; inside <= 3; ++inside) {
    const std::string head(room - inside, 'a');
    set_last_error(head + "\xe2\x82\xac" + "tail");
    const std::string wanted = inside == 3 ? head + "\xe2\x82\xac" : head;
    CHECK(std::string(last_error()) == wanted);
  }
  set_last_error("abcdef");
  set_last_error(std::string_view(last_error()).substr(2));
  CHECK(std::string(last_error()) == "cdef");
}

absl::StatusOr<int> half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError(str_cat("x=", x, ", accepted: even"));
  return x / 2;
}
absl::StatusOr<int> quarter(int x) {
  PKV_ASSIGN_OR_RETURN(const int first, half(x));
  PKV_ASSIGN_OR_RETURN(const int second, half(first));
  return second;
}
absl::Status check_quarter(int x) {
  PKV_RETURN_IF_ERROR(quarter(x).status());
  return absl::OutOfRangeError("reached the end");
}

TEST_CASE("status macros: stop at the first error, else go on") {
  CHECK(*quarter(12) == 3);
  CHECK(to_std(quarter(6).status().message()) == "x=3, accepted: even");
  CHECK(check_quarter(5).code() == absl::StatusCode::kInvalidArgument);
  CHECK(check_quarter(4).code() == absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace pkv
