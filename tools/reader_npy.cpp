#include "tools/reader_npy.h"

#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "tools/file_tensor.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kMaxHeaderBytes = 1 << 20;

// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }: the keys in any order, each
// once, and nothing else.
class DictParser {
 public:
  explicit DictParser(std::string_view text) : rest_(text) {}

  bool parse(NpyHeader& header) {
    if (!take('{')) return false;
    while (!take('}')) {
      std::string key;
      if (!quoted(key) || !take(':') || !value(key, header)) return false;
      if (!take(',') && peek() != '}') return false;
    }
    skip_space();
    return rest_.empty() && has_descr_ && has_order_ && has_shape_;
  }

 private:
  void skip_space() {
    while (!rest_.empty() && std::string_view(" \t\r\n").find(rest_.front()) != rest_.npos) {
      rest_.remove_prefix(1);
    }
  }
  char peek() {
    skip_space();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char wanted) {
    if (peek() != wanted || rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool quoted(std::string& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = rest_.find(quote, 1);
    if (end == rest_.npos) return false;
    out = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return true;
  }
  bool count(int64_t& out) {
    skip_space();
    const char* end = rest_.data() + rest_.size();
    const auto [stop, error] = std::from_chars(rest_.data(), end, out);
    if (error != std::errc() || out < 0) return false;
    rest_.remove_prefix(static_cast<size_t>(stop - rest_.data()));
    return true;
  }
  bool shape(std::vector<int64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      if (out.size() == kMaxAxes || !count(out.emplace_back())) return false;
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }
  bool value(const std::string& key, NpyHeader& header) {
    if (key == "descr") return !std::exchange(has_descr_, true) && quoted(header.descr);
    if (key == "shape") return !std::exchange(has_shape_, true) && shape(header.shape);
    if (key != "fortran_order" || std::exchange(has_order_, true)) return false;
    header.fortran_order = take_word("True");
    return header.fortran_order || take_word("False");
  }

  std::string_view rest_;
  bool has_descr_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

ElementType type_of(std::string_view descr) {
  constexpr std::array<std::pair<std::string_view, ElementType>, 7> kTypes = {
      {{"<f4", ElementType::kF32},
       {"<f2", ElementType::kF16},
       {"<f8", ElementType::kF64},
       {"|u1", ElementType::kU8},
       {"<u1", ElementType::kU8},
       {"<i4", ElementType::kI32},
       {"<i8", ElementType::kI64}}};
  for (const auto& [name, type] : kTypes) {
    if (name == descr) return type;
  }
  return ElementType::kOther;
}

// Offset of the header's text and its length.
struct Span {
  int64_t offset;
  int64_t bytes;
};
absl::StatusOr<Span> find_header(const InputFile& file, const std::string& source) {
  std::array<char, 12> start = {};
  CLI_RETURN_IF_ERROR(file.read(0, 10, start.data()));
  if (std::string_view(start.data(), kMagic.size()) != kMagic) {
    return input_error("{}: not an .npy file: it does not begin with \\x93NUMPY", source);
  }
  const int major = static_cast<unsigned char>(start[6]);
  if (major < 1 || major > 3) {
    return input_error("{}: .npy version {}: accepted are 1, 2, 3", source, major);
  }
  Span header = {10, 0};
  uint32_t length = 0;
  if (major == 1) {
    std::memcpy(&length, &start[8], 2);
  } else {
    header.offset = 12;
    CLI_RETURN_IF_ERROR(file.read(8, 4, &length));
  }
  header.bytes = length;
  const int64_t limit = std::min(file.size() - header.offset, kMaxHeaderBytes);
  if (header.bytes > limit) {
    return input_error("{}: header of {} bytes: accepted are 0..{}, the file has {} bytes", source,
                       header.bytes, limit, file.size());
  }
  return header;
}

}  // namespace

absl::StatusOr<NpyHeader> parse_npy_header(std::string_view text, const std::string& source) {
  NpyHeader header;
  if (!DictParser(text).parse(header)) {
    return input_error(
        "{}: damaged header: must be a dict of descr (a text), fortran_order, and "
        "shape (at most {} counts)",
        source, kMaxAxes);
  }
  return header;
}

absl::StatusOr<std::unique_ptr<TensorReader>> open_npy(InputFile input, const std::string& source) {
  const auto file = std::make_shared<const InputFile>(std::move(input));
  CLI_ASSIGN_OR_RETURN(const Span span, find_header(*file, source));
  std::string text(static_cast<size_t>(span.bytes), '\0');
  CLI_RETURN_IF_ERROR(file->read(span.offset, span.bytes, text.data()));
  CLI_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header(text, source));

  TensorInfo info;
  info.source = source;
  info.type = type_of(header.descr);
  info.shape = std::move(header.shape);
  if (info.type == ElementType::kOther) {
    return input_error("{}: descr '{}': accepted are <f4, <f2, <f8, |u1, <i4, <i8", source,
                       header.descr);
  }
  if (header.fortran_order) {
    return input_error("{}: fortran_order True: accepted is False (numpy.ascontiguousarray)",
                       source);
  }
  const int64_t offset = span.offset + span.bytes;
  const int64_t needed = checked_product(info.shape, element_bytes(info.type));
  if (needed != file->size() - offset) {
    return input_error("{}: shape {} of {} needs {} bytes, the file holds {}", source,
                       shape_text(info.shape), header.descr,
                       needed < 0 ? std::string("over 2^63") : std::to_string(needed),
                       file->size() - offset);
  }
  return std::make_unique<FileTensor>(std::move(info), file, file.get(), offset);
}

}  // namespace pkv::cli
