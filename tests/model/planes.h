// Canonical planes of key records (docs/format.md, 1), with sizes written from that text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pariskv/pariskv.h"

namespace pkv::cache_model {

class Planes {
 public:
  Planes(const pkv_geometry& geometry, int64_t begin, int64_t count);
  const pkv_records& records() const { return records_; }
  // All planes, one after the other.
  std::string bytes() const;
  const std::vector<uint8_t>& signs() const { return planes_[0]; }

 private:
  pkv_records records_{};
  std::vector<std::vector<uint8_t>> planes_;
};

}  // namespace pkv::cache_model
