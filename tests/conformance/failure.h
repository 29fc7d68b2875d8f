// How a case ends before its end: it failed, or the backend cannot do what it asks for.
#pragma once

#include <stdexcept>
#include <string>

namespace pkv::conformance {

// The text says what differs.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text is the backend's reason.
struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The backend cannot be used at all: no case can run.
struct Unavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace pkv::conformance
