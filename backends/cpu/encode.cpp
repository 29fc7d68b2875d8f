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

constexpr int64_t kRowsPerWorker = 4;  // from here on whole rows balance
constexpr int64_t kTaskKeys = 128;     // keys that are worth a task
constexpr int32_t kSumColumns = 64;    // values' coordinates of one task
constexpr int32_t kSumSubspaces = 4;   // occupancy's subspaces of one task

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

struct Span {
  int64_t begin;
  int64_t end;
};

struct Range {
  int32_t begin;
  int32_t end;
};

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
        piece_keys_(args.store.pages == nullptr ? kPieceKeys
                                                : std::min(kPieceKeys, args.store.capacity)),
        pieces_(tokens_ / piece_keys_ + 2),
        results_(scratch.take<PieceResult>(rows_ * pieces_)),
        sums_(args.values.ndim != 0 ? scratch.take<double>(rows_ * geometry_.value_dim) : nullptr),
        occupancy_(has_occupancy() ? scratch.take<int32_t>(rows_ * patterns()) : nullptr) {}

  pkv_status run() const {
    // Short appends of many sequences: some rows to a task.
    const int64_t rows_each = std::max<int64_t>(kTaskKeys / std::max<int64_t>(tokens_, 1), 1);
    const bool by_rows = rows_ >= kRowsPerWorker * device_.pool.workers() || tokens_ < kTaskKeys;
    const pkv_status status = by_rows ? run_rows(rows_each) : run_pieces();
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
  RecordRow records(int64_t row) const {
    return record_row(a_.store, layout_, geometry_.kv_heads, a_.sequences[entry(row)],
                      static_cast<int32_t>(head(row)));
  }

  // Whole rows to a task: values are summed while they are in a cache.
  pkv_status run_rows(int64_t rows_each) const {
    return device_.pool.parallel(rows_, rows_each, [this](int64_t row, int32_t) {
      start_sums(row, {0, geometry_.value_dim}, {0, layout_.subspaces});
      for (int64_t piece = 0; piece < pieces_; ++piece) {
        const Span span = span_of(row, piece);
        encode(row, piece, span);
        if (has_sums()) sum_values(row, span, {0, geometry_.value_dim});
        if (has_occupancy()) count_patterns(row, span, {0, layout_.subspaces});
      }
    });
  }

  // Few long rows: pieces to a task, and then the sums of some columns.
  pkv_status run_pieces() const {
    const pkv_status status = device_.pool.parallel(rows_ * pieces_, 1, [this](int64_t i, int32_t) {
      encode(i / pieces_, i % pieces_, span_of(i / pieces_, i % pieces_));
    });
    if (status != PKV_OK) return status;
    const int64_t sum_tasks = has_sums() ? blocks(geometry_.value_dim, kSumColumns) : 0;
    const int64_t tasks =
        sum_tasks + (has_occupancy() ? blocks(layout_.subspaces, kSumSubspaces) : 0);
    return device_.pool.parallel(rows_ * tasks, 1, [&](int64_t i, int32_t) {
      const int64_t row = i / tasks;
      const Span all = {begin(row), end(row)};
      if (i % tasks < sum_tasks) {
        const Range columns = range_of(i % tasks, kSumColumns, geometry_.value_dim);
        start_sums(row, columns, {});
        sum_values(row, all, columns);
      } else {
        const Range subspaces = range_of(i % tasks - sum_tasks, kSumSubspaces, layout_.subspaces);
        start_sums(row, {}, subspaces);
        count_patterns(row, all, subspaces);
      }
    });
  }

  // Positions of a piece, which may be none.
  Span span_of(int64_t row, int64_t piece) const {
    const int64_t first = (begin(row) / piece_keys_ + piece) * piece_keys_;
    return {std::max(begin(row), first), std::min(end(row), first + piece_keys_)};
  }

  static Range range_of(int64_t task, int32_t size, int32_t count) {
    const auto first = static_cast<int32_t>(task) * size;
    return {first, std::min(first + size, count)};
  }

  void encode(int64_t row, int64_t piece, const Span& span) const {
    PieceResult& result = results_[row * pieces_ + piece];
    result = {0, -1};
    if (span.begin >= span.end) return;
    const RecordRow target = records(row);
    const int64_t local = target.store.local(span.begin);
    const Piece work = {&a_.codec,
                        entry(row),
                        static_cast<int32_t>(head(row)),
                        layout_,
                        target.piece(span.begin),
                        rows_from(a_.keys, row, span.begin),
                        rows_from(a_.values, row, span.begin),
                        local,
                        local + (span.end - span.begin)};
    result = encode_piece(device_.isa, work);
    if (result.first_bad >= 0) result.first_bad += span.begin - local;
  }

  // Rows of a view, row 0 that of `position`.
  Rows rows_from(const pkv_tensor& view, int64_t row, int64_t position) const {
    Rows rows = rows_of(view, entry(row), head(row));
    if (rows.first != nullptr) rows.first = rows.at(position - begin(row));
    return rows;
  }

  // What was there before the call.
  void start_sums(int64_t row, const Range& columns, const Range& subspaces) const {
    const int32_t dv = geometry_.value_dim;
    if (has_sums() && columns.end > columns.begin) {
      std::copy_n(a_.value_sums + store_index(row) * dv + columns.begin,
                  columns.end - columns.begin, sums_ + row * dv + columns.begin);
    }
    if (has_occupancy()) {
      int32_t* counts = occupancy_ + row * patterns();
      std::fill(counts + subspaces.begin * format::kCentroids,
                counts + subspaces.end * format::kCentroids, 0);
    }
  }

  void sum_values(int64_t row, const Span& span, const Range& columns) const {
    Rows values = rows_from(a_.values, row, span.begin);
    values.first += columns.begin * dtype_bytes(values.dtype);
    add_values(device_.isa, records(row), values, span.begin, span.end, columns.end - columns.begin,
               sums_ + row * geometry_.value_dim + columns.begin);
  }

  void count_patterns(int64_t row, const Span& span, const Range& subspaces) const {
    const RecordRow keys = records(row);
    for (int32_t s = subspaces.begin; s < subspaces.end; ++s) {
      int32_t* counts = occupancy_ + row * patterns() + s * format::kCentroids;
      for (int64_t position = span.begin; position < span.end; ++position) {
        const uint8_t* piece = keys.piece(position);
        const int64_t local = keys.store.local(position);
        const int bad = piece[layout_.bad_byte(local)] >> (local % 8) & 1;
        counts[piece[layout_.sign_byte(local, s)]] += 1 - bad;
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
  int64_t piece_keys_;
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
