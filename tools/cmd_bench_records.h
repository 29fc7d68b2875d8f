// Records of several layers of random keys, made by the stage encode.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_stages.h"
#include "tools/cmd_bench_data.h"
#include "tools/cmd_bench_shape.h"
#include "tools/engine.h"

namespace pkv::cli {

// Microseconds of one call of a stage: what it checks, its scratch and the wait included.
template <class Args>
absl::StatusOr<double> time_stage(const Engine& engine, const Args& args,
                                  pkv_status (*stage)(pkv_device*, pkv_stream*, const Args*)) {
  const auto start = std::chrono::steady_clock::now();
  const pkv_status status = stage(engine.device(), engine.stream(), &args);
  const auto end = std::chrono::steady_clock::now();
  CLI_RETURN_IF_ERROR(from_library(status, About::kOptions));
  return std::chrono::duration<double, std::micro>(end - start).count();
}

class BenchRecords {
 public:
  // Layers without records.
  static absl::StatusOr<std::unique_ptr<BenchRecords>> create(const Engine& engine,
                                                              const BenchSetup& setup,
                                                              const BenchData& data);

  // All n keys of a layer anew. Microseconds.
  absl::StatusOr<double> encode(int64_t layer);

  const pkv_codec_params& params() const { return params_; }
  pkv_batch batch() const;  // every sequence with n keys
  pkv_store store(int64_t layer) const;
  int32_t* occupancy(int64_t layer) const;    // [rows, d/8, 256]; NULL unless vote = tier
  double* value_sums(int64_t layer) const;    // [rows, d]; NULL without values
  int64_t* good_counts(int64_t layer) const;  // [rows]

 private:
  struct Layer {
    std::unique_ptr<Memory> store;
    // On the host they stay 0: what encode adds to.
    std::unique_ptr<DeviceArray<int32_t>> occupancy;
    std::unique_ptr<DeviceArray<double>> value_sums;
    std::unique_ptr<DeviceArray<int64_t>> good_counts;
  };

  BenchRecords(const Engine& engine, const BenchShape& shape, const BenchData& data)
      : engine_(engine), shape_(shape), data_(data) {}
  absl::Status create_codec(const pkv_codec* codec);
  absl::Status create_batch();
  absl::Status create_layers();
  absl::StatusOr<const float*> upload(std::vector<float> numbers);

  const Engine& engine_;
  const BenchShape& shape_;
  const BenchData& data_;
  pkv_codec_params params_ = {};
  std::vector<DeviceArray<float>> floats_;           // of the codec
  std::unique_ptr<DeviceArray<int32_t>> sequences_;  // [b]
  std::unique_ptr<DeviceArray<int64_t>> lengths_;    // [b]
  std::unique_ptr<DeviceArray<int64_t>> starts_;     // [b]
  int64_t store_row_bytes_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace pkv::cli
