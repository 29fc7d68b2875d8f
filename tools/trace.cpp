#include "tools/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "tools/element.h"
#include "tools/interrupt.h"
#include "tools/reader_safetensors.h"
#include "tools/rows.h"

namespace pkv::cli {
namespace {

constexpr int64_t kMaxGroup = 128;
constexpr int64_t kChunkElements = 1 << 18;

using File = std::shared_ptr<const SafetensorsFile>;

absl::Status check_finite(const TensorInfo& info, const TraceTensor& tensor, int64_t begin,
                          int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  const auto* data = static_cast<const char*>(tensor.memory->data());
  to_float(tensor.dtype, data + begin * dtype_bytes(tensor.dtype), count, numbers.data());
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(numbers[static_cast<size_t>(i)])) {
      return input_error("{}: element {} of shape {} is {}: accepted are finite numbers",
                         info.source, begin + i, shape_text(info.shape),
                         numbers[static_cast<size_t>(i)]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TraceTensor> load_floats(const Engine& engine, const File& file,
                                        const std::string& name) {
  CLI_ASSIGN_OR_RETURN(const auto reader, SafetensorsFile::tensor(file, name));
  const TensorInfo& info = reader->info();
  if (info.shape.size() != 3) {
    return input_error("{}: shape {}: accepted are 3 axes, {}", info.source, shape_text(info.shape),
                       name == "q" ? "[queries, query heads, d]" : "[KV heads, n, d]");
  }
  CLI_RETURN_IF_ERROR(check_float_tensor(info));
  TraceTensor tensor;
  tensor.dtype = float_dtype(info.type);
  tensor.shape = info.shape;
  const int64_t elements = reader->elements();
  const int64_t unit = dtype_bytes(tensor.dtype);
  CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine, PKV_ALLOC_HOST, elements * unit));
  tensor.memory = std::make_unique<Memory>(std::move(memory));
  std::vector<char> stored(static_cast<size_t>(kChunkElements * element_bytes(info.type)));
  for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const int64_t count = std::min(kChunkElements, elements - begin);
    CLI_RETURN_IF_ERROR(reader->read(begin, count, stored.data()));
    convert_elements(info.type, stored.data(), count,
                     static_cast<char*>(tensor.memory->data()) + begin * unit);
    CLI_RETURN_IF_ERROR(check_finite(info, tensor, begin, count));
  }
  return tensor;
}

absl::StatusOr<std::vector<int64_t>> load_positions(const File& file, int64_t queries,
                                                    int64_t tokens) {
  CLI_ASSIGN_OR_RETURN(const auto reader, SafetensorsFile::tensor(file, "q_pos"));
  const TensorInfo& info = reader->info();
  const bool is_narrow = info.type == ElementType::kI32;
  if (!is_narrow && info.type != ElementType::kI64) {
    return input_error("{}: elements of {}: accepted are i64, i32", info.source,
                       element_name(info.type));
  }
  if (info.shape != std::vector<int64_t>{queries}) {
    return input_error("{}: shape {}: accepted is [{}], one position for each query", info.source,
                       shape_text(info.shape), queries);
  }
  std::vector<int64_t> positions(static_cast<size_t>(queries));
  if (is_narrow) {
    std::vector<int32_t> narrow(positions.size());
    CLI_RETURN_IF_ERROR(reader->read(0, queries, narrow.data()));
    std::copy(narrow.begin(), narrow.end(), positions.begin());
  } else {
    CLI_RETURN_IF_ERROR(reader->read(0, queries, positions.data()));
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= tokens) {
      return input_error("{}: q_pos[{}]={}: accepted are 0..{}, the positions of the keys",
                         info.source, i, positions[i], tokens - 1);
    }
  }
  return positions;
}

absl::Status check_shapes(const Trace& trace) {
  const auto& k = trace.keys.shape;
  const auto& v = trace.values.shape;
  const auto& q = trace.queries.shape;
  if (v[0] != k[0] || v[1] != k[1]) {
    return input_error("{}: tensor v: shape {}: accepted are {} KV heads and n={} as in k {}",
                       trace.path, shape_text(v), k[0], k[1], shape_text(k));
  }
  if (q[2] != k[2]) {
    return input_error("{}: tensor q: d={}: accepted is {} as in k {}", trace.path, q[2], k[2],
                       shape_text(k));
  }
  if (q[1] % k[0] != 0 || q[1] / k[0] > kMaxGroup) {
    return input_error(
        "{}: tensor q: {} query heads: accepted are multiples of the {} KV heads of k, "
        "at most {} times",
        trace.path, q[1], k[0], kMaxGroup);
  }
  return absl::OkStatus();
}

// A plain decimal; without one the softmax is scaled by 1/sqrt(d).
absl::Status take_scale(const SafetensorsFile& file, Trace& trace) {
  const auto it = file.metadata().find("scale");
  if (it == file.metadata().end()) {
    trace.scale = fmt::format("{}", 1.0 / std::sqrt(static_cast<double>(trace.head_dim())));
    return absl::OkStatus();
  }
  const std::string& text = it->second;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() ||
      !(static_cast<float>(value) > 0 && value <= 1e6)) {
    return input_error(
        "{}: metadata scale=\"{}\": accepted is a decimal number above 0, at most 1e6", trace.path,
        text);
  }
  trace.scale = text;
  return absl::OkStatus();
}

// A JSON list of one number for each KV head; without one they count from 0.
absl::Status take_labels(const SafetensorsFile& file, Trace& trace) {
  const auto heads = static_cast<size_t>(trace.kv_heads());
  const auto it = file.metadata().find("kv_heads");
  if (it == file.metadata().end()) {
    for (size_t i = 0; i < heads; ++i) trace.kv_labels.push_back(static_cast<int64_t>(i));
    return absl::OkStatus();
  }
  const auto list = nlohmann::json::parse(it->second, nullptr, /*allow_exceptions=*/false);
  bool is_good = list.is_array() && list.size() == heads;
  for (size_t i = 0; is_good && i < heads; ++i) {
    is_good = list[i].is_number_unsigned();
    if (is_good) trace.kv_labels.push_back(list[i].get<int64_t>());
  }
  if (!is_good) {
    return input_error(
        "{}: metadata kv_heads=\"{}\": accepted is a JSON list of {} whole numbers, one "
        "for each KV head of k",
        trace.path, it->second, heads);
  }
  return absl::OkStatus();
}

}  // namespace

char* TraceTensor::row(int64_t i, int64_t j) const {
  return static_cast<char*>(memory->data()) + (i * shape[1] + j) * shape[2] * dtype_bytes(dtype);
}

double Trace::scale_value() const {
  double value = 0;
  std::from_chars(scale.data(), scale.data() + scale.size(), value);
  return value;
}

absl::StatusOr<Trace> load_trace(const Engine& engine, const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const File file, SafetensorsFile::open(path));
  for (const char* name : {"k", "v", "q", "q_pos"}) {
    CLI_RETURN_IF_ERROR(SafetensorsFile::tensor(file, name).status());
  }
  Trace trace;
  trace.path = path;
  trace.name = std::filesystem::path(path).stem().string();
  CLI_ASSIGN_OR_RETURN(trace.keys, load_floats(engine, file, "k"));
  CLI_ASSIGN_OR_RETURN(trace.values, load_floats(engine, file, "v"));
  CLI_ASSIGN_OR_RETURN(trace.queries, load_floats(engine, file, "q"));
  CLI_RETURN_IF_ERROR(check_shapes(trace));
  CLI_ASSIGN_OR_RETURN(trace.positions, load_positions(file, trace.query_count(), trace.tokens()));
  CLI_RETURN_IF_ERROR(take_scale(*file, trace));
  CLI_RETURN_IF_ERROR(take_labels(*file, trace));
  return trace;
}

}  // namespace pkv::cli
