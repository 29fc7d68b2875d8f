#include "tests/model/planes.h"

namespace pkv::cache_model {

Planes::Planes(const pkv_geometry& g, int64_t begin, int64_t count) : planes_(8) {
  const int64_t d8 = g.head_dim / 8, dv8 = g.value_dim / 8;
  const int64_t code_planes = g.codec == PKV_CODEC_SCALAR5 ? 4 : 3;
  int64_t sketches = 0;  // positions that are multiples of the stride
  if (g.sketch_bits != 0) {
    for (int64_t i = begin; i < begin + count; ++i) sketches += i % g.sketch_stride == 0 ? 1 : 0;
  }
  const int64_t sizes[8] = {
      count * d8,
      g.vote == PKV_VOTE_GRADED ? count * 2 : 0,
      count * code_planes * d8,
      count * 2 * (g.codec == PKV_CODEC_POLAR4 ? d8 : 1),
      sketches * dv8,
      sketches * (g.sketch_bits - 1) * dv8,
      sketches * 2,
      g.value_norm != 0 ? count * 2 : 0,
  };
  for (std::size_t p = 0; p < planes_.size(); ++p) {
    if (sizes[p] > 0) planes_[p].assign(static_cast<std::size_t>(sizes[p]), 0xee);
  }
  const auto bytes_at = [this](std::size_t p) {
    return planes_[p].empty() ? nullptr : planes_[p].data();
  };
  const auto halves_at = [&](std::size_t p) { return reinterpret_cast<uint16_t*>(bytes_at(p)); };
  records_.struct_size = sizeof records_;
  records_.row_tokens = count;
  records_.signs = bytes_at(0);
  records_.vote_factors = halves_at(1);
  records_.codes = bytes_at(2);
  records_.factors = halves_at(3);
  records_.value_signs = bytes_at(4);
  records_.value_codes = bytes_at(5);
  records_.value_factors = halves_at(6);
  records_.value_norms = halves_at(7);
}

std::string Planes::bytes() const {
  std::string all;
  for (const auto& plane : planes_) {
    all.append(reinterpret_cast<const char*>(plane.data()), plane.size());
  }
  return all;
}

}  // namespace pkv::cache_model
