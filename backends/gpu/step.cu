// Optional slot step: the stages' launches one after the other. docs/algorithm.md, sections 4 to 8.
// What the stages begin with alike is done once (prepare.cuh), and the vote counts what select
// counts first. Rows of the zone are read where they lie if one pass over them serves all heads of
// a group; else, since every pass would cross PCIe again, they are copied first.
#include "backends/gpu/attend.h"
#include "backends/gpu/device.h"
#include "backends/gpu/fetch.h"
#include "backends/gpu/prepare.cuh"
#include "backends/gpu/rerank.h"
#include "backends/gpu/select.h"
#include "backends/gpu/stages.h"
#include "backends/gpu/vote.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

bool has_attention(const pkv_step_args& a) { return a.attend.output.ndim != 0; }

// A vendor that can do a step in one go has these three in its VendorDevice.
template <class AnyDevice>
int64_t whole_bytes(const AnyDevice& device, const pkv_step_args& args) {
  if constexpr (requires { device.vendor.whole_step_bytes(device.ordinal, args); }) {
    return device.vendor.whole_step_bytes(device.ordinal, args);
  }
  return 0;
}
template <class AnyDevice>
pkv_status check_whole(const AnyDevice& device, const pkv_step_args& args) {
  if constexpr (requires { device.vendor.check_whole_step(device.host, device.ordinal, args); }) {
    return device.vendor.check_whole_step(device.host, device.ordinal, args);
  }
  return PKV_OK;
}
// False: the step is to run by stages.
template <class AnyDevice>
bool run_whole(const AnyDevice& device, const pkv_step_args& args, void* scratch,
               gpuStream_t stream, gpuError_t* error) {
  if constexpr (requires {
                  device.vendor.run_whole_step(device.ordinal, args, scratch, stream, error);
                }) {
    return device.vendor.run_whole_step(device.ordinal, args, scratch, stream, error);
  }
  return false;
}

// A contiguous [b, h, k, width].
struct RowsView {
  int64_t shape[4];
  pkv_tensor tensor;

  void set(const pkv_step_args& a, const pkv_tensor& source, void* data) {
    shape[0] = a.vote.batch.batch;
    shape[1] = a.vote.codec.geometry->kv_heads;
    shape[2] = a.attend.k;
    shape[3] = source.shape[3];
    tensor = source;
    tensor.data = data;
    tensor.byte_offset = 0;
    tensor.shape = shape;
    tensor.strides = nullptr;
  }
  int64_t bytes() const {
    return shape[0] * shape[1] * shape[2] * shape[3] * dtype_bytes(tensor.dtype);
  }
};

// The stages' arguments with what the step supplies, and its scratch.
class Step {
 public:
  Step(pkv_backend_device* device, const pkv_step_args& args, void* scratch)
      : device_(device), args_(args), scratch_(scratch) {}

  pkv_status supports() {
    lay_out();
    pkv_status status = vote_slots().supports(device_, &args_.vote);
    if (status == PKV_OK) status = select_slots().supports(device_, &args_.select);
    if (status == PKV_OK) status = rerank_slots().supports(device_, &args_.rerank);
    if (status == PKV_OK && has_attention(args_)) {
      status = check_attend(device_of(device_).host, args_.attend, args_.fetch.source_keys,
                            args_.fetch.source_values);
    }
    return status == PKV_OK ? check_whole(device_of(device_), args_) : status;
  }

  int64_t scratch_bytes() {
    lay_out();
    return scratch_.bytes();
  }

  pkv_status run(pkv_backend_stream* stream) {
    lay_out();
    return run_stage(device_, stream, "step", [&](gpuStream_t s) {
      gpuError_t error = gpuSuccess;
      const bool is_done = run_whole(device_of(device_), args_, whole_scratch_, s, &error);
      return is_done ? error : enqueue(s);
    });
  }

 private:
  int64_t rows() const {
    return int64_t{args_.vote.batch.batch} * args_.vote.codec.geometry->kv_heads;
  }
  // Votes count the first digits of rows that select does not choose from in one go. Of many keys a
  // launch of its own does that faster.
  bool counts_digits() const {
    return select_.bins != nullptr && rows() * args_.vote.batch.max_length <= Traits::kVoteCounts;
  }
  uint32_t* counted_bins() const { return counts_digits() ? select_.bins : nullptr; }
  static constexpr int64_t kBinsOfRow = int64_t{kBestPasses} * kBestBins;

  // Pieces in one order.
  void lay_out() {
    const pkv_geometry& geometry = *args_.vote.codec.geometry;
    args_.vote.votes_stride = args_.select.votes_stride =
        gpu::round_up(args_.vote.batch.max_length, 64);
    args_.vote.votes = scratch_.take<float>(rows() * args_.vote.votes_stride);
    args_.select.votes = args_.vote.votes;
    prepared_ = take_prepared_queries(scratch_, geometry, rows(), args_.vote.query_heads);
    tables_ = take_vote_tables(scratch_, args_.vote);
    select_ = take_select_scratch(scratch_, args_.select);
    rerank_ = take_rerank_temporaries(scratch_, args_.rerank);
    whole_scratch_ = scratch_.take<std::byte>(whole_bytes(device_of(device_), args_));
    if (!has_attention(args_)) return;
    // Scratch is asked for before it is known whether there is a row cache.
    if (!copies_rows()) places_ = scratch_.take<int32_t>(rows() * args_.attend.k);
    partials_ = take_attention();
  }

  gpuError_t enqueue(gpuStream_t stream) {
    gpuError_t error = prepare(stream);
    if (error == gpuSuccess && args_.vote.codec.geometry->vote != PKV_VOTE_GRADED) {
      error = launch_vote_tables(args_.vote, prepared_, tables_, stream);
    }
    if (error == gpuSuccess) {
      error = launch_vote_keys(args_.vote, prepared_, tables_, counted_bins(), kBinsOfRow, stream);
    }
    if (error == gpuSuccess) error = launch_select(args_.select, select_, counts_digits(), stream);
    if (error == gpuSuccess) {
      error = launch_rerank(args_.rerank, prepared_, rerank_, row_cache_args(), stream);
    }
    return error == gpuSuccess && has_attention(args_) ? attend(stream) : error;
  }

  gpuError_t prepare(gpuStream_t stream) {
    const pkv_geometry& geometry = *args_.vote.codec.geometry;
    PrepareArgs args{};
    args.query = {view_of(args_.vote.codec), view_of(args_.vote.queries), rows(), prepared_};
    args.tables = vote_table_args(args_.vote, prepared_, tables_);
    args.has_tables = geometry.vote == PKV_VOTE_GRADED ? 1 : 0;
    args.estimate = estimate_query_args(args_.rerank, prepared_, rerank_);
    args.bins = counted_bins();
    args.bins_stride = kBinsOfRow;
    LaunchShape shape;
    shape.grid_y = grid_rows(rows());
    shape.threads = Traits::kPrepareThreads;
    shape.dynamic_bytes =
        int64_t{Traits::kPrepareThreads} / 32 * geometry.head_dim * int64_t{sizeof(float)};
    return launch("prepare_step", prepare_step<Traits>, shape, stream, args);
  }

  // Rows that are copied first are not looked for in the cache.
  bool uses_row_cache() const {
    return args_.row_cache.data != nullptr && has_attention(args_) && args_.attend.k > 0 &&
           !copies_rows();
  }
  RowCacheArgs row_cache_args() const {
    if (!uses_row_cache()) return {};
    const pkv_rerank_args& rerank = args_.rerank;
    return {args_.row_cache,  rerank.batch.sequences,
            rerank.positions, rerank.counts,
            rows(),           args_.vote.codec.geometry->kv_heads,
            rerank.k,         places_};
  }

  bool copies_rows() const { return args_.attend.k > 0 && !reads_rows_once(args_.attend); }

  Partials take_attention() {
    if (copies_rows()) {
      keys_.set(args_, args_.fetch.source_keys, nullptr);
      values_.set(args_, args_.fetch.source_values, nullptr);
      keys_.tensor.data = scratch_.take<std::byte>(keys_.bytes());
      values_.tensor.data = scratch_.take<std::byte>(values_.bytes());
    }
    return take_partials(scratch_, args_.attend);
  }

  // The fetched rows as attend finds them.
  TokenRun rows_run() const {
    TokenRun run{};
    run.tokens = args_.attend.k;
    run.counts = args_.attend.counts;
    if (run.tokens == 0) return run;
    if (copies_rows()) {
      run.keys = source_of(keys_.tensor, {});
      run.values = source_of(values_.tensor, {});
      return run;
    }
    run.keys = source_of(args_.fetch.source_keys, args_.fetch.key_pages);
    run.values = source_of(args_.fetch.source_values, args_.fetch.value_pages);
    run.positions = args_.attend.positions;
    run.is_by_sequence = 1;
    if (uses_row_cache()) run.places = places_;
    return run;
  }

  gpuError_t attend(gpuStream_t stream) {
    if (copies_rows()) {
      args_.fetch.keys = keys_.tensor;
      args_.fetch.values = values_.tensor;
      const gpuError_t error = launch_fetch(args_.fetch, stream);
      if (error != gpuSuccess) return error;
    }
    return launch_attend(args_.attend, rows_run(), row_cache_args().cache, prepared_.bad, partials_,
                         stream);
  }

  pkv_backend_device* device_;
  pkv_step_args args_;
  Scratch scratch_;
  void* whole_scratch_ = nullptr;
  PreparedQueries prepared_ = {};
  VoteTables tables_ = {};
  BestScratch select_ = {};
  RerankTemporaries rerank_ = {};
  int32_t* places_ = nullptr;
  Partials partials_ = {};
  RowsView keys_ = {};
  RowsView values_ = {};
};

pkv_status supports(pkv_backend_device* device, const pkv_step_args* args) {
  return Step(device, *args, nullptr).supports();
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_step_args* args, int64_t* out) {
  *out = Step(device, *args, nullptr).scratch_bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_step_args* args,
               void* scratch) {
  return Step(device, *args, scratch).run(stream);
}

}  // namespace

pkv_step_slots step_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
