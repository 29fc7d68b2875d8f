#include "tools/reader_fvecs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr int64_t kHeadBytes = 4;
constexpr int32_t kMaxDim = 65536;
constexpr int64_t kChunkBytes = 1 << 20;

class VecsTensor : public TensorReader {
 public:
  VecsTensor(TensorInfo info, InputFile file)
      : TensorReader(std::move(info)),
        file_(std::move(file)),
        dim_(this->info().shape[1]),
        row_bytes_(dim_ * element_bytes(this->info().type)) {}

  absl::Status read(int64_t begin, int64_t count, void* out) override {
    auto* target = static_cast<char*>(out);
    const int64_t unit = element_bytes(info().type);
    const int64_t rows_at_once = std::max<int64_t>(1, kChunkBytes / (kHeadBytes + row_bytes_));
    while (count > 0) {
      const int64_t row = begin / dim_;
      const int64_t rows = std::min(rows_at_once, (begin + count - 1) / dim_ - row + 1);
      CLI_RETURN_IF_ERROR(load(row, rows));
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t first = begin - (row + i) * dim_;  // of this row's elements
        const int64_t taken = std::min(dim_ - first, count);
        std::memcpy(target,
                    &records_[static_cast<size_t>(i * (kHeadBytes + row_bytes_) + kHeadBytes +
                                                  first * unit)],
                    static_cast<size_t>(taken * unit));
        target += taken * unit;
        begin += taken;
        count -= taken;
      }
    }
    return absl::OkStatus();
  }

 private:
  // Records [row, row + rows), with their dimensions checked.
  absl::Status load(int64_t row, int64_t rows) {
    const int64_t record = kHeadBytes + row_bytes_;
    records_.resize(static_cast<size_t>(rows * record));
    CLI_RETURN_IF_ERROR(file_.read(row * record, rows * record, records_.data()));
    for (int64_t i = 0; i < rows; ++i) {
      int32_t dim = 0;
      std::memcpy(&dim, &records_[static_cast<size_t>(i * record)], kHeadBytes);
      if (dim != dim_) {
        return input_error("{}: record {} (from 0) says d={}, needed is d={} as in record 0",
                           info().source, row + i, dim, dim_);
      }
    }
    return absl::OkStatus();
  }

  InputFile file_;
  int64_t dim_;
  int64_t row_bytes_;
  std::vector<char> records_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorReader>> open_vecs(const std::string& path, ElementType type) {
  CLI_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  int32_t dim = 0;
  CLI_RETURN_IF_ERROR(file.read(0, kHeadBytes, &dim));
  if (dim < 1 || dim > kMaxDim) {
    return input_error("{}: record 0 says d={}: accepted are 1..{}", path, dim, kMaxDim);
  }
  const int64_t record = kHeadBytes + int64_t{dim} * element_bytes(type);
  if (file.size() % record != 0) {
    return input_error(
        "{}: {} bytes are no whole number of records of {} bytes (d={}): truncated or "
        "damaged",
        path, file.size(), record, dim);
  }
  TensorInfo info;
  info.source = path;
  info.type = type;
  info.shape = {file.size() / record, dim};
  return std::make_unique<VecsTensor>(std::move(info), std::move(file));
}

}  // namespace pkv::cli
