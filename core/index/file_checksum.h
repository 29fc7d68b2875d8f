// XXH3-64 of bytes that arrive in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pkv {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&& other) noexcept;
  Checksum& operator=(Checksum&& other) noexcept;

  void add(const void* data, std::size_t bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t checksum(const void* data, std::size_t bytes);

}  // namespace pkv
