// Optional slot step: the stages' launches one after the other. docs/algorithm.md, sections 4 to 8.
// Rows of the zone are read where they lie if one pass over them serves all heads of a group;
// else, since every pass would cross PCIe again, they are copied first.
#include "backends/gpu/attend.h"
#include "backends/gpu/device.h"
#include "backends/gpu/fetch.h"
#include "backends/gpu/query.h"
#include "backends/gpu/stages.h"

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

  pkv_status scratch_bytes(int64_t* out) {
    const pkv_status status = lay_out();
    *out = scratch_.bytes();
    return status;
  }

  pkv_status run(pkv_backend_stream* stream) {
    pkv_status status = lay_out();
    if (status != PKV_OK) return status;
    bool is_done = false;
    status = run_stage(device_, stream, "step", [&](gpuStream_t s) {
      gpuError_t error = gpuSuccess;
      is_done = run_whole(device_of(device_), args_, whole_scratch_, s, &error);
      return error;
    });
    if (status != PKV_OK || is_done) return status;
    status = vote_slots().run(device_, stream, &args_.vote, vote_scratch_);
    if (status == PKV_OK) status = select_slots().run(device_, stream, &args_.select, shared_);
    if (status == PKV_OK) status = rerank_slots().run(device_, stream, &args_.rerank, shared_);
    if (status != PKV_OK || !has_attention(args_)) return status;
    return run_stage(device_, stream, "attend", [&](gpuStream_t s) { return attend(s); });
  }

 private:
  // Pieces in one order. Of what one stage alone needs, `shared_` is as long as the longest.
  pkv_status lay_out() {
    const pkv_batch& batch = args_.vote.batch;
    const pkv_geometry& geometry = *args_.vote.codec.geometry;
    const int64_t rows = int64_t{batch.batch} * geometry.kv_heads;
    args_.vote.votes_stride = args_.select.votes_stride = gpu::round_up(batch.max_length, 64);
    args_.vote.votes = scratch_.take<float>(rows * args_.vote.votes_stride);
    args_.select.votes = args_.vote.votes;

    int64_t bytes = 0;
    pkv_status status = vote_slots().scratch_bytes(device_, &args_.vote, &bytes);
    if (status != PKV_OK) return status;
    vote_scratch_ = scratch_.take<std::byte>(bytes);
    status = select_slots().scratch_bytes(device_, &args_.select, &bytes);
    if (status != PKV_OK) return status;
    int64_t most = bytes;
    status = rerank_slots().scratch_bytes(device_, &args_.rerank, &bytes);
    if (status != PKV_OK) return status;
    most = most > bytes ? most : bytes;
    if (has_attention(args_)) {
      Scratch attention(nullptr);
      take_attention(attention);
      most = most > attention.bytes() ? most : attention.bytes();
    }
    shared_ = scratch_.take<std::byte>(most);
    whole_scratch_ = scratch_.take<std::byte>(whole_bytes(device_of(device_), args_));
    return PKV_OK;
  }

  bool copies_rows() const { return args_.attend.k > 0 && !reads_rows_once(args_.attend); }

  Partials take_attention(Scratch& scratch) {
    if (copies_rows()) {
      keys_.set(args_, args_.fetch.source_keys, nullptr);
      values_.set(args_, args_.fetch.source_values, nullptr);
      keys_.tensor.data = scratch.take<std::byte>(keys_.bytes());
      values_.tensor.data = scratch.take<std::byte>(values_.bytes());
    }
    return take_partials(scratch, args_.attend);
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
    return run;
  }

  gpuError_t attend(gpuStream_t stream) {
    Scratch scratch(shared_);
    const Partials partials = take_attention(scratch);
    if (copies_rows()) {
      args_.fetch.keys = keys_.tensor;
      args_.fetch.values = values_.tensor;
      const gpuError_t error = launch_fetch(args_.fetch, stream);
      if (error != gpuSuccess) return error;
    }
    // Vote has prepared the queries, as the first piece of its scratch.
    Scratch of_vote(vote_scratch_);
    const PreparedQueries prepared =
        take_prepared_queries(of_vote, *args_.vote.codec.geometry,
                              int64_t{args_.vote.batch.batch} * args_.vote.codec.geometry->kv_heads,
                              args_.vote.query_heads);
    return launch_attend(args_.attend, rows_run(), prepared.bad, partials, stream);
  }

  pkv_backend_device* device_;
  pkv_step_args args_;
  Scratch scratch_;
  void* vote_scratch_ = nullptr;
  void* shared_ = nullptr;
  void* whole_scratch_ = nullptr;
  RowsView keys_ = {};
  RowsView values_ = {};
};

pkv_status supports(pkv_backend_device* device, const pkv_step_args* args) {
  return Step(device, *args, nullptr).supports();
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_step_args* args, int64_t* out) {
  return Step(device, *args, nullptr).scratch_bytes(out);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_step_args* args,
               void* scratch) {
  return Step(device, *args, scratch).run(stream);
}

}  // namespace

pkv_step_slots step_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
