// A tensor that lies in one piece in a file.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "tools/input_file.h"
#include "tools/reader.h"

namespace pkv::cli {

class FileTensor : public TensorReader {
 public:
  // `keeper` owns `file`.
  FileTensor(TensorInfo info, std::shared_ptr<const void> keeper, const InputFile* file,
             int64_t offset)
      : TensorReader(std::move(info)), keeper_(std::move(keeper)), file_(file), offset_(offset) {}

  absl::Status read(int64_t begin, int64_t count, void* out) override {
    const int64_t bytes = element_bytes(info().type);
    return file_->read(offset_ + begin * bytes, count * bytes, out);
  }

 private:
  std::shared_ptr<const void> keeper_;
  const InputFile* file_;
  int64_t offset_;
};

}  // namespace pkv::cli
