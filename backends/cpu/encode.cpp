// Stage encode: pieces of rows for the pool, then the running sums. docs/algorithm.md, section 3.
// Not here: what becomes of a key (encode_piece.cpp).
// What a caller sees besides records (good keys, occupancy, sums, first bad positions) is made in
// scratch and written at the end, so that a cancelled call changes nothing of it.
#include "backends/cpu/encode.h"

#include <algorithm>

#include "backends/cpu/check.h"
#include "backends/cpu/device.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

constexpr int64_t kTaskKeys = 128;    // keys that are worth a task
constexpr int32_t kSumColumns = 64;   // values' coordinates of one task
constexpr int32_t kSumSubspaces = 4;  // occupancy's subspaces of one task

pkv_status supports(pkv_backend_device* device, const pkv_encode_args* args) {
  const pkv_host* host = device->host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status = check_floats(host, "keys", args->keys);
  if (status != PKV_OK) return status;
  if (args->values.ndim != 0) {
    status = check_range(host, "value_dim", geometry.value_dim, format::kMinHeadDim,
                         format::kMaxHeadDim);
    return status != PKV_OK ? status : check_floats(host, "values", args->values);
  }
  // Without values there is nothing to make a sketch or a norm of.
  status = check_range(host, "without values sketch_bits", geometry.sketch_bits, 0, 0);
  if (status != PKV_OK) return status;
  return check_range(host, "without values value_norm", geometry.value_norm, 0, 0);
}

// One call. Rows are the (entry, head) pairs of the batch, in this order.
class Call {
 public:
  Call(const pkv_backend_device& device, const pkv_encode_args& args, Scratch& scratch)
      : device_(device),
        a_(args),
        geometry_(*args.codec.geometry),
        layout_(make_layout(geometry_, args.store.capacity)),
        rows_(int64_t{args.batch} * geometry_.kv_heads),
        tokens_(args.keys.shape[2]),
        // One more than whole pieces: the first may begin inside of one.
        pieces_(tokens_ / kPieceKeys + 2),
        results_(scratch.take<PieceResult>(rows_ * pieces_)),
        sums_(args.values.ndim != 0 ? scratch.take<double>(rows_ * geometry_.value_dim) : nullptr),
        occupancy_(has_occupancy() ? scratch.take<int32_t>(rows_ * patterns()) : nullptr) {}

  pkv_status run() const {
    // Short appends of many sequences: some rows to a task.
    const int64_t rows_each = std::max<int64_t>(kTaskKeys / std::max<int64_t>(tokens_, 1), 1);
    pkv_status status =
        device_.pool.parallel(rows_ * pieces_, rows_each == 1 ? 1 : rows_each * pieces_,
                              [this](int64_t i, int32_t) { encode(i / pieces_, i % pieces_); });
    if (status != PKV_OK) return status;
    const int64_t sum_tasks = has_sums() ? blocks(geometry_.value_dim, kSumColumns) : 0;
    const int64_t tasks =
        sum_tasks + (has_occupancy() ? blocks(layout_.subspaces, kSumSubspaces) : 0);
    status = device_.pool.parallel(rows_ * tasks, rows_each, [&](int64_t i, int32_t) {
      const int64_t task = i % tasks;
      if (task < sum_tasks) {
        sum_values(i / tasks, static_cast<int32_t>(task) * kSumColumns);
      } else {
        count_patterns(i / tasks, static_cast<int32_t>(task - sum_tasks) * kSumSubspaces);
      }
    });
    if (status != PKV_OK) return status;
    for (int64_t row = 0; row < rows_; ++row) commit(row);
    return PKV_OK;
  }

 private:
  bool has_sums() const { return a_.values.ndim != 0 && a_.value_sums != nullptr; }
  bool has_occupancy() const { return geometry_.vote == PKV_VOTE_TIER; }
  int64_t patterns() const { return int64_t{layout_.subspaces} * format::kCentroids; }
  static int64_t blocks(int32_t count, int32_t size) { return (count + size - 1) / size; }

  int64_t entry(int64_t row) const { return row / geometry_.kv_heads; }
  int64_t head(int64_t row) const { return row % geometry_.kv_heads; }
  int64_t begin(int64_t row) const { return a_.starts[entry(row)]; }
  int64_t end(int64_t row) const { return begin(row) + a_.counts[entry(row)]; }
  int64_t store_index(int64_t row) const {
    return int64_t{a_.sequences[entry(row)]} * geometry_.kv_heads + head(row);
  }
  uint8_t* store_row(int64_t row) const { return row_base(a_.store, store_index(row)); }

  void encode(int64_t row, int64_t piece) const {
    PieceResult& result = results_[row * pieces_ + piece];
    result = {0, -1};
    const int64_t first = (begin(row) / kPieceKeys + piece) * kPieceKeys;
    Piece p = {&a_.codec, static_cast<int32_t>(head(row)), layout_, store_row(row), {}, {}, 0, 0};
    p.begin = std::max(begin(row), first);
    p.end = std::min(end(row), first + kPieceKeys);
    if (p.begin >= p.end) return;
    p.keys = rows_from(a_.keys, row, p.begin);
    p.values = rows_from(a_.values, row, p.begin);
    result = encode_piece(device_.isa, p);
  }

  // Rows of a view, row 0 that of `position`.
  Rows rows_from(const pkv_tensor& view, int64_t row, int64_t position) const {
    Rows rows = rows_of(view, entry(row), head(row));
    if (rows.first != nullptr) rows.first = rows.at(position - begin(row));
    return rows;
  }

  void sum_values(int64_t row, int32_t column) const {
    const int32_t dv = geometry_.value_dim;
    const int32_t columns = std::min(kSumColumns, dv - column);
    double* sums = sums_ + row * dv + column;
    std::copy_n(a_.value_sums + store_index(row) * dv + column, columns, sums);
    Rows values = rows_from(a_.values, row, begin(row));
    values.first += column * dtype_bytes(values.dtype);
    add_values(device_.isa, layout_, store_row(row), values, begin(row), end(row), columns, sums);
  }

  void count_patterns(int64_t row, int32_t subspace) const {
    const int32_t last = std::min(subspace + kSumSubspaces, layout_.subspaces);
    int32_t* counts = occupancy_ + row * patterns();
    std::fill(counts + subspace * format::kCentroids, counts + last * format::kCentroids, 0);
    const uint8_t* store = store_row(row);
    for (int64_t position = begin(row); position < end(row); ++position) {
      if (is_bad(layout_, store, position)) continue;
      for (int32_t s = subspace; s < last; ++s) {
        ++counts[s * format::kCentroids + store[layout_.sign_byte(position, s)]];
      }
    }
  }

  void commit(int64_t row) const {
    const int64_t r = store_index(row);
    int64_t first_bad = -1;
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      const PieceResult& result = results_[row * pieces_ + piece];
      a_.good_counts[r] += result.good;
      if (first_bad < 0) first_bad = result.first_bad;
    }
    if (a_.first_bad != nullptr) a_.first_bad[row] = first_bad;
    const int32_t dv = geometry_.value_dim;
    if (has_sums()) std::copy_n(sums_ + row * dv, dv, a_.value_sums + r * dv);
    if (!has_occupancy()) return;
    for (int64_t i = 0; i < patterns(); ++i) {
      a_.occupancy[r * patterns() + i] += occupancy_[row * patterns() + i];
    }
  }

  const pkv_backend_device& device_;
  const pkv_encode_args& a_;
  const pkv_geometry& geometry_;
  Layout layout_;
  int64_t rows_;
  int64_t tokens_;  // t
  int64_t pieces_;
  PieceResult* results_;  // [rows, pieces]
  double* sums_;          // [rows, dv]
  int32_t* occupancy_;    // [rows, S, 256]
};

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_encode_args* args, int64_t* out) {
  Scratch scratch(nullptr);
  const Call call(*device, *args, scratch);
  *out = scratch.bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_encode_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    Scratch pieces(scratch);
    return Call(*device, *args, pieces).run();
  });
}

}  // namespace

pkv_encode_slots encode_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
