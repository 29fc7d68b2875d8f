#include "tools/reader.h"

#include <utility>

#include "tools/reader_fvecs.h"
#include "tools/reader_npy.h"
#include "tools/reader_npz.h"
#include "tools/reader_safetensors.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

bool ends_in(const std::string& path, std::string_view extension) {
  return path.size() > extension.size() &&
         std::string_view(path).substr(path.size() - extension.size()) == extension;
}

}  // namespace

TensorName split_tensor_name(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size() ||
      text.find('/', colon) != std::string::npos) {
    return {text, ""};
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

absl::StatusOr<std::unique_ptr<TensorReader>> open_tensor(const TensorName& name,
                                                          const std::string& default_tensor) {
  const std::string& path = name.path;
  const std::string& tensor = name.tensor.empty() ? default_tensor : name.tensor;
  if (ends_in(path, ".safetensors")) {
    CLI_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(path));
    return SafetensorsFile::tensor(file, tensor);
  }
  if (ends_in(path, ".npz")) return open_npz(path, tensor);
  const bool is_fvecs = ends_in(path, ".fvecs");
  const bool is_npy = ends_in(path, ".npy");
  if (!is_fvecs && !is_npy && !ends_in(path, ".bvecs")) {
    return input_error(
        "{}: unknown kind of file: accepted are .safetensors, .npy, .npz, .fvecs, .bvecs", path);
  }
  if (!name.tensor.empty()) {
    return usage_error("{}: tensor \"{}\" asked for, but such a file holds one without a name",
                       path, name.tensor);
  }
  if (!is_npy) return open_vecs(path, is_fvecs ? ElementType::kF32 : ElementType::kU8);
  CLI_ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  return open_npy(std::move(file), path);
}

}  // namespace pkv::cli
