#include "tests/conformance/codec.h"

namespace pkv::conformance {
namespace {

std::vector<float> sign_vector(uint64_t seed, int32_t stream, int32_t count) {
  std::vector<float> signs(static_cast<size_t>(count));
  require("pkv_sign_vector", pkv_sign_vector(seed, stream, count, signs.data()));
  return signs;
}

}  // namespace

pkv_geometry make_geometry(int32_t kv_heads, int32_t head_dim, int32_t value_dim) {
  pkv_geometry geometry = {};
  require("pkv_geometry_init", pkv_geometry_init(&geometry, sizeof geometry));
  geometry.kv_heads = kv_heads;
  geometry.head_dim = head_dim;
  geometry.value_dim = value_dim;
  geometry.v_source = PKV_V_SOURCE_OWN;
  geometry.codec = PKV_CODEC_SCALAR4;
  geometry.vote = PKV_VOTE_GRADED;
  geometry.rounds = 1;
  return geometry;
}

bool is_power_of_two(int32_t dim) { return (dim & (dim - 1)) == 0; }

Codec plain_codec(const pkv_geometry& geometry) {
  Codec codec;
  codec.geometry = geometry;
  const auto numbers = static_cast<size_t>(geometry.kv_heads) * geometry.head_dim;
  codec.center.assign(numbers, 0.0F);
  codec.balance.assign(numbers, 1.0F);
  set_reciprocals(codec);
  codec.signs_1 = sign_vector(geometry.seed, 1, geometry.head_dim);
  if (geometry.rounds == 2 || !is_power_of_two(geometry.head_dim)) {
    codec.signs_2 = sign_vector(geometry.seed, 2, geometry.head_dim);
  }
  if (geometry.sketch_bits == 0) return codec;
  codec.value_center.assign(static_cast<size_t>(geometry.kv_heads) * geometry.value_dim, 0.0F);
  codec.value_signs_1 = sign_vector(geometry.seed, 3, geometry.value_dim);
  if (!is_power_of_two(geometry.value_dim)) {
    codec.value_signs_2 = sign_vector(geometry.seed, 4, geometry.value_dim);
  }
  return codec;
}

Codec random_codec(const pkv_geometry& geometry, Random& random) {
  Codec codec = plain_codec(geometry);
  for (float& mu : codec.center) mu = 0.5F * random.normal();
  for (float& s : codec.balance) s = 0.5F + 1.5F * random.uniform();
  for (float& mu : codec.value_center) mu = 0.5F * random.normal();
  set_reciprocals(codec);
  return codec;
}

void set_reciprocals(Codec& codec) {
  codec.inv_balance.resize(codec.balance.size());
  for (size_t i = 0; i < codec.balance.size(); ++i) {
    codec.inv_balance[i] = 1.0F / codec.balance[i];
  }
}

Codec Codec::of_sequence(int32_t sequence) const {
  Codec one = *this;
  one.set_of.clear();
  if (set_of.empty()) return one;
  const auto set = static_cast<size_t>(set_of[static_cast<size_t>(sequence)]);
  const auto keep = [set](std::vector<float>& numbers, int32_t width) {
    if (numbers.empty()) return;
    const auto begin = numbers.begin() + static_cast<int64_t>(set) * width;
    numbers = std::vector<float>(begin, begin + width);
  };
  keep(one.center, heads() * d());
  keep(one.balance, heads() * d());
  keep(one.inv_balance, heads() * d());
  keep(one.value_center, heads() * dv());
  return one;
}

Codec joined(const std::vector<Codec>& codecs, int32_t sequences) {
  Codec all = codecs.front();
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (size_t set = 1; set < codecs.size(); ++set) {
    append(all.center, codecs[set].center);
    append(all.balance, codecs[set].balance);
    append(all.inv_balance, codecs[set].inv_balance);
    append(all.value_center, codecs[set].value_center);
  }
  for (int32_t s = 0; s < sequences; ++s) {
    all.set_of.push_back(s % static_cast<int32_t>(codecs.size()));
  }
  return all;
}

pkv_codec_params put_codec(Session& session, const Codec& codec,
                           const std::vector<int32_t>& sequences) {
  pkv_codec_params params = {};
  params.geometry = &codec.geometry;
  if (!codec.set_of.empty()) {
    std::vector<int32_t> sets;
    for (const int32_t sequence : sequences) {
      sets.push_back(codec.set_of[static_cast<size_t>(sequence)]);
    }
    params.set_of = session.in("set_of", sets);
  }
  params.center = session.in("center", codec.center);
  params.balance = session.in("balance", codec.balance);
  params.inv_balance = session.in("inv_balance", codec.inv_balance);
  params.signs_1 = session.in("signs_1", codec.signs_1);
  params.signs_2 = session.in("signs_2", codec.signs_2);
  params.value_center = session.in("value_center", codec.value_center);
  params.value_signs_1 = session.in("value_signs_1", codec.value_signs_1);
  params.value_signs_2 = session.in("value_signs_2", codec.value_signs_2);
  return params;
}

}  // namespace pkv::conformance
