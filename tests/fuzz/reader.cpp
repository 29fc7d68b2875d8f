#include "tests/fuzz/reader.h"

#include <algorithm>

#include "tools/status.h"

namespace pkv::fuzz {
namespace {

void check_refusal(const absl::Status& status) {
  require(cli::exit_code(status) == cli::kBadInput, "a file is refused as bad input");
  require_text({status.message().data(), status.message().size()});
}

}  // namespace

void check_tensor(const absl::StatusOr<std::unique_ptr<cli::TensorReader>>& opened,
                  std::size_t bytes, int64_t packing) {
  if (!opened.ok()) return check_refusal(opened.status());
  cli::TensorReader& reader = **opened;
  const int64_t unit = cli::element_bytes(reader.info().type);
  const int64_t count = reader.elements();
  require(unit > 0 && count >= 0 && reader.info().shape.size() <= cli::kMaxAxes,
          "a tensor has a type and extents");
  const auto most = static_cast<int64_t>(bytes) * packing;
  require(count <= most / unit, "a tensor is no larger than its file");
  // In heap blocks of their own, so that a sanitizer sees every byte written behind them.
  std::vector<char> whole(static_cast<std::size_t>(count * unit));
  const absl::Status read = reader.read(0, count, whole.data());
  if (!read.ok()) return check_refusal(read);
  const int64_t begin = count / 3, part = std::min<int64_t>(count - begin, 5);
  std::vector<char> piece(static_cast<std::size_t>(part * unit));
  require(reader.read(begin, part, piece.data()).ok() &&
              std::equal(piece.begin(), piece.end(), whole.begin() + begin * unit),
          "a piece is read as the whole");
  // Behind the tensor other tensors may lie; behind the file nothing.
  const int64_t behind = most / unit + 1;
  if (packing == 1) {
    std::vector<char> one(static_cast<std::size_t>(unit));
    require(!reader.read(behind, 1, one.data()).ok(), "nothing is read behind the file");
  }
}

}  // namespace pkv::fuzz
