#include "tools/reader_safetensors.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "tools/file_tensor.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

using nlohmann::json;

constexpr int64_t kPrefixBytes = 8;
constexpr int64_t kMaxJsonBytes = 16 << 20;  // real headers have a few KB
constexpr int kMaxDepth = 3;                 // {tensor: {shape: [..]}}

struct Dtype {
  std::string_view name;
  int64_t bytes;
  ElementType type;
};
constexpr std::array<Dtype, 14> kDtypes = {{{"F32", 4, ElementType::kF32},
                                            {"F16", 2, ElementType::kF16},
                                            {"BF16", 2, ElementType::kBf16},
                                            {"F64", 8, ElementType::kF64},
                                            {"U8", 1, ElementType::kU8},
                                            {"I32", 4, ElementType::kI32},
                                            {"I64", 8, ElementType::kI64},
                                            {"I8", 1, ElementType::kOther},
                                            {"BOOL", 1, ElementType::kOther},
                                            {"I16", 2, ElementType::kOther},
                                            {"U16", 2, ElementType::kOther},
                                            {"U32", 4, ElementType::kOther},
                                            {"U64", 8, ElementType::kOther},
                                            {"F8_E4M3", 1, ElementType::kOther}}};

const Dtype* find_dtype(std::string_view name) {
  const auto* const it = std::find_if(kDtypes.begin(), kDtypes.end(),
                                      [&](const Dtype& dtype) { return dtype.name == name; });
  return it == kDtypes.end() ? nullptr : it;
}

// Parses without recursion into unknown depths, and notes names that occur twice.
absl::StatusOr<json> parse_header(const std::string& path, const std::string& text) {
  bool is_too_deep = false;
  std::string twice;
  std::array<std::set<std::string>, kMaxDepth + 1> names;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) {
      is_too_deep = true;
      return false;
    }
    auto& seen = names[static_cast<size_t>(depth)];
    if (event == json::parse_event_t::object_start && depth < kMaxDepth) {
      names[static_cast<size_t>(depth) + 1].clear();
    }
    if (event == json::parse_event_t::key && !seen.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  json header = json::parse(text, watch, /*allow_exceptions=*/false);
  if (is_too_deep) {
    return input_error("{}: damaged header: nested deeper than {} levels", path, kMaxDepth);
  }
  if (!header.is_object()) return input_error("{}: damaged header: not a JSON object", path);
  if (!twice.empty()) {
    return input_error("{}: damaged header: \"{}\" stands twice", path, twice);
  }
  return header;
}

// The value as a count, or -1.
int64_t count_of(const json& value) {
  if (!value.is_number_unsigned()) return -1;
  const auto number = value.get<uint64_t>();
  return number > uint64_t{INT64_MAX} ? -1 : static_cast<int64_t>(number);
}

absl::StatusOr<std::vector<int64_t>> counts_of(const std::string& where, const char* field,
                                               const json& entry) {
  const auto it = entry.find(field);
  if (it == entry.end() || !it->is_array() || it->size() > kMaxAxes) {
    return input_error("{}: damaged header: {} must be a list of at most {} counts", where, field,
                       kMaxAxes);
  }
  std::vector<int64_t> counts;
  for (const json& value : *it) {
    counts.push_back(count_of(value));
    if (counts.back() < 0) {
      return input_error("{}: damaged header: {}={}: each must be a count of 0..2^63-1", where,
                         field, it->dump(-1, ' ', true, json::error_handler_t::replace));
    }
  }
  return counts;
}

}  // namespace

// Fills a SafetensorsFile from the JSON.
class SafetensorsHeader {
 public:
  static absl::Status take(const json& header, SafetensorsFile& file) {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        CLI_RETURN_IF_ERROR(take_metadata(entry, file));
      } else {
        CLI_ASSIGN_OR_RETURN(file.tensors_[name], entry_of(file, name, entry));
      }
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status take_metadata(const json& entry, SafetensorsFile& file) {
    const auto refusal = [&] {
      return input_error("{}: damaged header: __metadata__ must be an object of texts",
                         file.path());
    };
    if (!entry.is_object()) return refusal();
    for (const auto& [name, value] : entry.items()) {
      if (!value.is_string()) return refusal();
      file.metadata_[name] = value.get<std::string>();
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<SafetensorsFile::Entry> entry_of(const SafetensorsFile& file,
                                                         const std::string& name,
                                                         const json& entry) {
    const std::string where = fmt::format("{}: tensor {}", file.path(), name);
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) {
      return input_error("{}: damaged header: must be an object with a dtype", where);
    }
    SafetensorsFile::Entry result;
    result.dtype = entry["dtype"].get<std::string>();
    CLI_ASSIGN_OR_RETURN(result.shape, counts_of(where, "shape", entry));
    CLI_ASSIGN_OR_RETURN(const std::vector<int64_t> range, counts_of(where, "data_offsets", entry));
    const int64_t data = file.file_.size() - file.data_offset_;
    if (range.size() != 2 || range[0] > range[1] || range[1] > data) {
      return input_error(
          "{}: data_offsets={}: accepted are two ascending offsets in 0..{}, the bytes "
          "behind the header; the file is truncated or damaged",
          where, shape_text(range), data);
    }
    result.begin = range[0];
    result.end = range[1];
    const Dtype* dtype = find_dtype(result.dtype);
    const int64_t needed = dtype == nullptr ? -1 : checked_product(result.shape, dtype->bytes);
    if (dtype != nullptr && needed != result.end - result.begin) {
      return input_error("{}: shape {} of {} needs {} bytes, data_offsets hold {}", where,
                         shape_text(result.shape), result.dtype,
                         needed < 0 ? std::string("over 2^63") : std::to_string(needed),
                         result.end - result.begin);
    }
    return result;
  }
};

absl::Status SafetensorsFile::check_layout() const {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : tensors_) ranges.emplace_back(entry.begin, entry.end);
  std::sort(ranges.begin(), ranges.end());
  int64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != reached) {
      return input_error("{}: damaged header: tensors {} at data offset {}", path(),
                         begin < reached ? "overlap" : "leave a gap", std::min(begin, reached));
    }
    reached = end;
  }
  const int64_t data = file_.size() - data_offset_;
  if (reached != data) {
    return input_error("{}: the header describes {} bytes of data, the file has {}", path(),
                       reached, data);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(
    const std::string& path) {
  CLI_ASSIGN_OR_RETURN(InputFile input, InputFile::open(path));
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile(std::move(input)));
  uint64_t length = 0;
  CLI_RETURN_IF_ERROR(file->file_.read(0, kPrefixBytes, &length));
  const int64_t limit = std::min(file->file_.size() - kPrefixBytes, kMaxJsonBytes);
  if (length > static_cast<uint64_t>(limit)) {
    return input_error("{}: header of {} bytes: accepted are 0..{}, the file has {} bytes", path,
                       length, limit, file->file_.size());
  }
  std::string text(length, '\0');
  CLI_RETURN_IF_ERROR(file->file_.read(kPrefixBytes, static_cast<int64_t>(length), text.data()));
  file->data_offset_ = kPrefixBytes + static_cast<int64_t>(length);
  CLI_ASSIGN_OR_RETURN(const json header, parse_header(path, text));
  CLI_RETURN_IF_ERROR(SafetensorsHeader::take(header, *file));
  CLI_RETURN_IF_ERROR(file->check_layout());
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

absl::StatusOr<std::unique_ptr<TensorReader>> SafetensorsFile::tensor(
    const std::shared_ptr<const SafetensorsFile>& file, const std::string& name) {
  const auto it = file->tensors_.find(name);
  if (it == file->tensors_.end()) {
    std::vector<std::string> names;
    for (const auto& [there, entry] : file->tensors_) names.push_back(there);
    return input_error("{}: no tensor \"{}\"; there are: {}", file->path(), name,
                       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  const Dtype* dtype = find_dtype(it->second.dtype);
  TensorInfo info;
  info.source = fmt::format("{}: tensor {}", file->path(), name);
  info.type = dtype == nullptr ? ElementType::kOther : dtype->type;
  info.shape = it->second.shape;
  if (info.type == ElementType::kOther) {
    return input_error("{}: dtype {}: accepted are F32, F16, BF16, F64, U8, I32, I64", info.source,
                       it->second.dtype);
  }
  return std::make_unique<FileTensor>(std::move(info), file, &file->file_,
                                      file->data_offset_ + it->second.begin);
}

}  // namespace pkv::cli
