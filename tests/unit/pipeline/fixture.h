// What the tests of pipeline, index and plan share: the reference device, options, made-up tensors.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/text.h"
#include "core/codec/codec.h"
#include "core/index/index.h"
#include "core/index/record_planes.h"
#include "core/plan/config.h"
#include "core/plan/plan.h"
#include "core/runtime/device.h"
#include "core/runtime/registry.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv::test {

// Fails the test with the status's text unless it is OK.
inline void require_ok(const absl::Status& status) {
  INFO(std::string(to_std(status.message())));
  REQUIRE(status.ok());
}
template <class Value>
Value value_of(absl::StatusOr<Value> value) {
  require_ok(value.status());
  return *std::move(value);
}
// "INVALID_ARGUMENT: k=-1, .."
inline std::string text_of(const absl::Status& status) {
  return std::string(to_std(absl::StatusCodeToString(status.code()))) + ": " +
         std::string(to_std(status.message()));
}
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
// Code and every part of the text.
inline void check_refused(const absl::Status& status, absl::StatusCode code,
                          std::initializer_list<std::string_view> parts) {
  const std::string text = text_of(status);
  INFO(text);
  CHECK(status.code() == code);
  for (const std::string_view part : parts) {
    INFO("looked for: ", std::string(part));
    CHECK(contains(text, part));
  }
}

// The reference device and one stream.
struct Machine {
  Machine() : Machine(value_of(value_of(Registry::create({}))->open_device("cpu_ref", 0))) {}
  explicit Machine(std::shared_ptr<const Device> opened)
      : device(std::move(opened)), stream(value_of(Stream::create(device))) {}
  std::shared_ptr<const Device> device;
  Stream stream;
};

using Options = std::vector<std::pair<std::string, std::string>>;

inline Config config_of(const Options& options, std::string_view profile = "default") {
  Config config = value_of(Config::create(profile));
  for (const auto& [name, value] : options) require_ok(config.set(name, value));
  return config;
}

// Numbers on the host with the tensor that describes them. Not copied: tensors point into it.
class Array {
 public:
  Array(std::initializer_list<int64_t> shape, float value = 0.0F) : shape_(shape) {
    int64_t count = 1;
    for (const int64_t extent : shape_) count *= extent;
    numbers_.assign(static_cast<std::size_t>(count), value);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  float* data() { return numbers_.data(); }
  std::vector<float>& numbers() { return numbers_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  pkv_tensor tensor(pkv_device_type type = PKV_DEVICE_CPU) {
    pkv_tensor tensor{};
    tensor.data = numbers_.data();
    tensor.device_type = type;
    tensor.ndim = static_cast<int32_t>(shape_.size());
    tensor.dtype = PKV_DTYPE_F32;
    tensor.shape = shape_.data();
    return tensor;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<float> numbers_;
};

// Roughly normal, the same on every machine: sums of uniform numbers, by integers.
inline void fill_random(std::vector<float>& numbers, uint32_t seed) {
  std::mt19937 generator(seed);
  for (float& number : numbers) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(generator() >> 16) - 32768;
    number = static_cast<float>(sum) / 37000.0F;
  }
}

// Tokens [begin, begin + count) of an array [h, t, d], as a view.
struct Tokens {
  Tokens(Array& all, int64_t begin, int64_t count) : tensor(all.tensor()) {
    const int64_t d = all.shape()[2];
    shape = {all.shape()[0], count, d};
    strides = {all.shape()[1] * d, d, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    tensor.byte_offset = static_cast<uint64_t>(begin * d * int64_t{sizeof(float)});
  }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  std::vector<int64_t> shape, strides;
  pkv_tensor tensor;
};

// Centre and balance that are not trivial, without a fit.
inline std::shared_ptr<const Codec> codec_of(const Machine& machine, const Config& config,
                                             int32_t kv_heads) {
  const pkv_geometry g = value_of(config.geometry(kv_heads));
  const auto numbers = static_cast<std::size_t>(kv_heads * g.head_dim);
  std::vector<float> center(numbers), balance(numbers), value_center;
  for (std::size_t j = 0; j < numbers; ++j) {
    center[j] = config.codec_options().center ? 0.125F * static_cast<float>(j % 5) : 0.0F;
    balance[j] = config.codec_options().balance ? 0.5F + 0.25F * static_cast<float>(j % 3) : 1.0F;
  }
  if (g.sketch_bits != 0)
    value_center.assign(static_cast<std::size_t>(kv_heads * g.value_dim), 0.25F);
  return value_of(Codec::create(machine.device,
                                value_of(CodecParams::create(g, center, balance, value_center)),
                                config.codec_options()));
}

// All records of one row as one string of bytes.
inline std::string records_of_row(const Machine& machine, const Index& index, int32_t sequence,
                                  int32_t kv_head) {
  const int64_t count = index.length(sequence);
  const auto bytes = plane_bytes(index.geometry());
  std::vector<std::string> planes;
  std::array<uint8_t*, kPlanes> pointers{};
  const auto sizes = range_bytes(index.geometry(), 0, count);
  for (const int64_t size : sizes) planes.emplace_back(static_cast<std::size_t>(size), '\xee');
  for (std::size_t p = 0; p < planes.size(); ++p) {
    if (bytes[p] != 0) pointers[p] = reinterpret_cast<uint8_t*>(planes[p].data());
  }
  require_ok(
      index.export_sync(machine.stream, sequence, kv_head, 0, count, records_of(pointers, count)));
  std::string all;
  for (const std::string& plane : planes) all += plane;
  return all;
}

// Everything that an index holds of its tokens, as bytes.
inline std::string content_of(const Machine& machine, const Index& index) {
  require_ok(machine.stream.sync());
  std::string all;
  const pkv_geometry& g = index.geometry();
  const auto add = [&all](const void* data, int64_t bytes) {
    all.append(static_cast<const char*>(data), static_cast<std::size_t>(bytes));
  };
  for (int32_t s = 0; s < index.sequences(); ++s) {
    const int64_t length = index.length(s);
    const bool has_values = index.has_values(s);
    add(&length, sizeof length);
    add(&has_values, sizeof has_values);
    for (int32_t h = 0; h < g.kv_heads; ++h) all += records_of_row(machine, index, s, h);
  }
  const int64_t rows = int64_t{index.sequences()} * g.kv_heads;
  add(index.good_counts(), rows * 8);
  add(index.device_lengths(), index.sequences() * 8);
  if (index.occupancy() != nullptr) add(index.occupancy(), rows * (g.head_dim / 8) * 256 * 4);
  if (index.value_sums() != nullptr) add(index.value_sums(), rows * g.value_dim * 8);
  return all;
}

}  // namespace pkv::test
