#include "tools/cmd_report_fields.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr uintmax_t kMostBytes = uintmax_t{1} << 28;
constexpr double kLargest = 1e15;  // a double and int64_t both hold such counts

// As the message tells it: short, and nothing of a large value.
std::string shown(const Json& value) {
  constexpr size_t kMost = 40;
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "..";
  return text;
}

}  // namespace

absl::StatusOr<Json> load_json(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return input_error("{}: cannot be read: {}", path, error.message());
  if (bytes > kMostBytes) {
    return input_error("{}: {} bytes: accepted are at most {}", path, bytes, kMostBytes);
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) return input_error("{}: cannot be read", path);
  Json document;
  try {
    document = Json::parse(text);
  } catch (const Json::exception& fault) {
    return input_error("{}: no JSON: {}", path, plain_text(fault.what()));
  }
  if (!document.is_object()) {
    return input_error("{}: no object: accepted is one with \"results\" or \"runs\"", path);
  }
  return document;
}

std::string plain_text(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

Fields::Fields(const Json& object, std::string file, std::string path, absl::Status* status)
    : object_(&object), file_(std::move(file)), path_(std::move(path)), status_(status) {}

std::string Fields::path_of(const std::string& name) const {
  return path_.empty() || name.empty() ? path_ + name : path_ + "." + name;
}

void Fields::refuse(const std::string& name, const std::string& what) const {
  if (status_->ok()) *status_ = input_error("{}: {}: {}", file_, path_of(name), what);
}

const Json* Fields::find(const std::string& name) const {
  if (!object_->is_object()) return nullptr;
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool Fields::has(const std::string& name) const { return find(name) != nullptr; }

bool Fields::is_object(const std::string& name) const {
  const Json* value = find(name);
  return value != nullptr && value->is_object();
}

std::string Fields::text(const std::string& name) const {
  if (!has(name)) refuse(name, "missing: accepted is a text");
  return maybe_text(name);
}

std::string Fields::maybe_text(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return "";
  if (!value->is_string()) {
    refuse(name, fmt::format("{}: accepted is a text", shown(*value)));
    return "";
  }
  return plain_text(value->get<std::string>());
}

double Fields::number(const std::string& name) const {
  if (!has(name)) refuse(name, "missing: accepted is a number of 0..1e15");
  return maybe_number(name).value_or(0);
}

std::optional<double> Fields::maybe_number(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() <= kLargest)) {
    refuse(name, fmt::format("{}: accepted is a number of 0..1e15", shown(*value)));
    return std::nullopt;
  }
  return value->get<double>();
}

int64_t Fields::integer(const std::string& name) const {
  const double value = number(name);
  if (value != std::floor(value)) {
    refuse(name, fmt::format("{}: accepted is a whole number of 0 or more", value));
    return 0;
  }
  return static_cast<int64_t>(value);
}

std::optional<double> Fields::maybe_share(const std::string& name) const {
  const std::optional<double> value = maybe_number(name);
  constexpr double kRounded = 1e-6;  // a mean of shares may round to above 1
  if (value && *value > 1 + kRounded) {
    refuse(name, fmt::format("{}: accepted is a share of 0..1", *value));
  }
  return value;
}

std::vector<Fields> Fields::maybe_objects(const std::string& name) const {
  std::vector<Fields> entries;
  const Json* list = find(name);
  if (list == nullptr) return entries;
  if (!list->is_array()) {
    refuse(name, fmt::format("{}: accepted is an array of objects", shown(*list)));
    return entries;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    entries.emplace_back((*list)[i], file_, fmt::format("{}[{}]", path_of(name), i), status_);
    if (!(*list)[i].is_object()) {
      entries.back().refuse("", fmt::format("{}: accepted is an object", shown((*list)[i])));
    }
  }
  return entries;
}

std::vector<Fields> Fields::objects(const std::string& name) const {
  std::vector<Fields> entries = maybe_objects(name);
  if (entries.empty()) {
    refuse(name, fmt::format("{}: accepted is an array of one or more objects",
                             has(name) ? "none" : "missing"));
  }
  return entries;
}

std::vector<int64_t> Fields::maybe_integers(const std::string& name) const {
  std::vector<int64_t> numbers;
  const Json* list = find(name);
  // A single one, of rows of speed, is a count and not a list.
  if (list == nullptr || list->is_number()) return numbers;
  for (const Json& entry : *list) {
    if (!list->is_array() || !entry.is_number_integer()) {
      refuse(name, fmt::format("{}: accepted are whole numbers", shown(entry)));
      return numbers;
    }
    numbers.push_back(entry.get<int64_t>());
  }
  return numbers;
}

Fields Fields::object(const std::string& name) const {
  static const Json kNothing = Json::object();
  const Json* value = find(name);
  return {value == nullptr ? kNothing : *value, file_, path_of(name), status_};
}

}  // namespace pkv::cli
