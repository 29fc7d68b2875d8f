#include "tools/cmd_bench_records.h"

#include <utility>

namespace pkv::cli {
namespace {

constexpr int kPatterns = 256;

template <class T>
absl::StatusOr<std::unique_ptr<DeviceArray<T>>> make_array(const Engine& engine, int64_t count) {
  CLI_ASSIGN_OR_RETURN(auto array, DeviceArray<T>::create(engine, count));
  return std::make_unique<DeviceArray<T>>(std::move(array));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchRecords>> BenchRecords::create(const Engine& engine,
                                                                   const BenchSetup& setup,
                                                                   const BenchData& data) {
  std::unique_ptr<BenchRecords> records(new BenchRecords(engine, setup.shape, data));
  CLI_RETURN_IF_ERROR(records->create_codec(setup.codec.get()));
  CLI_RETURN_IF_ERROR(records->create_batch());
  CLI_RETURN_IF_ERROR(records->create_layers());
  return records;
}

absl::StatusOr<const float*> BenchRecords::upload(std::vector<float> numbers) {
  CLI_ASSIGN_OR_RETURN(auto array,
                       DeviceArray<float>::create(engine_, static_cast<int64_t>(numbers.size())));
  array.host() = std::move(numbers);
  CLI_RETURN_IF_ERROR(array.upload());
  CLI_RETURN_IF_ERROR(engine_.sync());
  const float* device = array.device();
  floats_.push_back(std::move(array));
  return device;
}

absl::Status BenchRecords::create_codec(const pkv_codec* codec) {
  pkv_codec_data data;
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&data, sizeof data), About::kOptions));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_export(codec, &data), About::kOptions));
  const auto list = [&](const float* numbers) {
    return std::vector<float>(numbers, numbers + shape_.kv_heads * shape_.dim);
  };
  std::vector<float> inverse = list(data.balance);
  for (float& s : inverse) s = 1.0F / s;
  const auto signs = [&](int32_t stream) -> absl::StatusOr<const float*> {
    std::vector<float> vector(static_cast<size_t>(shape_.dim));
    CLI_RETURN_IF_ERROR(
        from_library(pkv_sign_vector(shape_.geometry.seed, stream, static_cast<int32_t>(shape_.dim),
                                     vector.data()),
                     About::kOptions));
    return upload(std::move(vector));
  };
  params_.geometry = &shape_.geometry;
  CLI_ASSIGN_OR_RETURN(params_.center, upload(list(data.center)));
  CLI_ASSIGN_OR_RETURN(params_.balance, upload(list(data.balance)));
  CLI_ASSIGN_OR_RETURN(params_.inv_balance, upload(std::move(inverse)));
  CLI_ASSIGN_OR_RETURN(params_.signs_1, signs(1));
  CLI_ASSIGN_OR_RETURN(params_.signs_2, signs(2));
  if (shape_.geometry.sketch_bits == 0) return absl::OkStatus();
  CLI_ASSIGN_OR_RETURN(params_.value_center, upload(list(data.value_center)));
  CLI_ASSIGN_OR_RETURN(params_.value_signs_1, signs(3));
  CLI_ASSIGN_OR_RETURN(params_.value_signs_2, signs(4));
  return absl::OkStatus();
}

absl::Status BenchRecords::create_batch() {
  CLI_ASSIGN_OR_RETURN(sequences_, make_array<int32_t>(engine_, shape_.batch));
  CLI_ASSIGN_OR_RETURN(lengths_, make_array<int64_t>(engine_, shape_.batch));
  CLI_ASSIGN_OR_RETURN(starts_, make_array<int64_t>(engine_, shape_.batch));
  for (int64_t i = 0; i < shape_.batch; ++i) {
    sequences_->host()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    lengths_->host()[static_cast<size_t>(i)] = shape_.n;
  }
  CLI_RETURN_IF_ERROR(sequences_->upload());
  CLI_RETURN_IF_ERROR(lengths_->upload());
  CLI_RETURN_IF_ERROR(starts_->upload());
  return engine_.sync();
}

absl::Status BenchRecords::create_layers() {
  CLI_RETURN_IF_ERROR(from_library(
      pkv_store_row_bytes(engine_.device(), &shape_.geometry, shape_.n, &store_row_bytes_),
      About::kOptions));
  for (int64_t i = 0; i < shape_.layers; ++i) {
    Layer layer;
    CLI_ASSIGN_OR_RETURN(
        Memory memory, Memory::create(engine_, PKV_ALLOC_DEVICE, shape_.rows() * store_row_bytes_));
    layer.store = std::make_unique<Memory>(std::move(memory));
    if (shape_.geometry.vote == PKV_VOTE_TIER) {
      CLI_ASSIGN_OR_RETURN(
          layer.occupancy,
          make_array<int32_t>(engine_, shape_.rows() * shape_.dim / 8 * kPatterns));
    }
    if (shape_.has_values) {
      CLI_ASSIGN_OR_RETURN(layer.value_sums,
                           make_array<double>(engine_, shape_.rows() * shape_.dim));
    }
    CLI_ASSIGN_OR_RETURN(layer.good_counts, make_array<int64_t>(engine_, shape_.rows()));
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

pkv_batch BenchRecords::batch() const {
  pkv_batch batch = {};
  batch.batch = static_cast<int32_t>(shape_.batch);
  batch.sequences = sequences_->device();
  batch.lengths = lengths_->device();
  batch.max_length = shape_.n;
  return batch;
}

pkv_store BenchRecords::store(int64_t layer) const {
  pkv_store store = {};
  store.base = layers_[static_cast<size_t>(layer)].store->data();
  store.row_bytes = store_row_bytes_;
  store.capacity = shape_.n;
  return store;
}

int32_t* BenchRecords::occupancy(int64_t layer) const {
  const auto& array = layers_[static_cast<size_t>(layer)].occupancy;
  return array ? array->device() : nullptr;
}

double* BenchRecords::value_sums(int64_t layer) const {
  const auto& array = layers_[static_cast<size_t>(layer)].value_sums;
  return array ? array->device() : nullptr;
}

int64_t* BenchRecords::good_counts(int64_t layer) const {
  return layers_[static_cast<size_t>(layer)].good_counts->device();
}

absl::StatusOr<double> BenchRecords::encode(int64_t layer) {
  const Layer& target = layers_[static_cast<size_t>(layer)];
  if (target.occupancy) CLI_RETURN_IF_ERROR(target.occupancy->upload());
  if (target.value_sums) CLI_RETURN_IF_ERROR(target.value_sums->upload());
  CLI_RETURN_IF_ERROR(target.good_counts->upload());
  CLI_RETURN_IF_ERROR(engine_.sync());
  pkv_encode_args args = {};
  args.struct_size = sizeof args;
  args.batch = static_cast<int32_t>(shape_.batch);
  args.codec = params_;
  args.keys = data_.keys(layer);
  if (shape_.has_values) args.values = data_.values(layer);
  args.sequences = sequences_->device();
  args.starts = starts_->device();
  args.counts = lengths_->device();
  args.store = store(layer);
  args.occupancy = occupancy(layer);
  args.value_sums = value_sums(layer);
  args.good_counts = good_counts(layer);
  return time_stage(engine_, args, pkv_stage_encode_sync);
}

}  // namespace pkv::cli
