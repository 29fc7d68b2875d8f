#include "tools/queries.h"

#include "tools/status.h"

namespace pkv::cli {

absl::StatusOr<Queries> Queries::open(const TensorName& name, int64_t head_dim, int64_t kv_heads) {
  constexpr int64_t kMaxGroup = 128;
  CLI_ASSIGN_OR_RETURN(Rows rows, Rows::open(name, "q"));
  Queries queries(std::move(rows));
  if (queries.dim() != head_dim) {
    return input_error("{}: queries of d={}: accepted is d={} as of the keys", queries.source(),
                       queries.dim(), head_dim);
  }
  const int64_t heads = queries.heads();
  if (heads % kv_heads != 0 || heads / kv_heads > kMaxGroup) {
    return input_error(
        "{}: {} query heads: accepted are multiples of the {} KV heads of the keys, at "
        "most {} times",
        queries.source(), heads, kv_heads, kMaxGroup);
  }
  return queries;
}

}  // namespace pkv::cli
