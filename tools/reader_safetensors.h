// .safetensors: 8 bytes with the length of a JSON header, the header, the data.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/input_file.h"
#include "tools/reader.h"

namespace pkv::cli {

class SafetensorsFile {
 public:
  // Reads and checks the header: types, shapes against bytes, no gap or overlap in the data.
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // NULL-free; names the tensors there are if there is no such one.
  static absl::StatusOr<std::unique_ptr<TensorReader>> tensor(
      const std::shared_ptr<const SafetensorsFile>& file, const std::string& name);

 private:
  friend class SafetensorsHeader;
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t begin = 0;  // in the data
    int64_t end = 0;
  };
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  absl::Status check_layout() const;

  InputFile file_;
  int64_t data_offset_ = 0;
  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace pkv::cli
