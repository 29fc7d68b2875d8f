// Tensors in files: .safetensors, .npy, .npz, .fvecs, .bvecs. Headers are checked against the size
// of the file before anything is allocated by them; data is read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/element.h"

namespace pkv::cli {

inline constexpr size_t kMaxAxes = 8;  // of a tensor, whatever the file could hold

struct TensorInfo {
  std::string source;  // what texts call it: "keys.npy", "trace.safetensors: tensor k"
  ElementType type = ElementType::kOther;
  std::vector<int64_t> shape;  // row-major, dense; the product of extents and bytes is checked
};

class TensorReader {
 public:
  virtual ~TensorReader() = default;
  const TensorInfo& info() const { return info_; }
  int64_t elements() const { return checked_product(info_.shape, 1); }
  // Elements [begin, begin + count) in their stored type.
  virtual absl::Status read(int64_t begin, int64_t count, void* out) = 0;

 protected:
  explicit TensorReader(TensorInfo info) : info_(std::move(info)) {}

 private:
  TensorInfo info_;
};

// "FILE" or "FILE:TENSOR". A colon that is followed by a slash, or by nothing, belongs to the file.
struct TensorName {
  std::string path;
  std::string tensor;  // "": the default of the caller
};
TensorName split_tensor_name(const std::string& text);

// The reader by the file's extension. A .safetensors or .npz holds tensors by name;
// `default_tensor` is taken where none was asked for. Other files hold one without a name.
absl::StatusOr<std::unique_ptr<TensorReader>> open_tensor(const TensorName& name,
                                                          const std::string& default_tensor);

}  // namespace pkv::cli
