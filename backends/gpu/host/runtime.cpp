#include "backends/gpu/host/runtime.h"

#include <cstdio>

#include "backends/gpu/host/work.h"

namespace pkv::gpu_host {
namespace {

// Of the last failed launch, as a runtime's error state is.
thread_local char kernel_fault[512];

}  // namespace

gpuError_t Stream::run_until(std::size_t count) {
  gpuError_t first = gpuSuccess;
  while (done < count && !queue.empty()) {
    const Work work = std::move(queue.front());
    queue.pop_front();
    ++done;
    const gpuError_t error = work();
    if (first == gpuSuccess) first = error;
  }
  return first;
}

gpuError_t enqueue(gpuStream_t stream, Work work) {
  if (stream->mode->is_capturing) {
    stream->mode->captured_on = stream;
    stream->mode->graph.push_back(std::move(work));
    return gpuSuccess;
  }
  if (!stream->mode->is_deferred) return work();
  stream->queue.push_back(std::move(work));
  return gpuSuccess;
}

gpuError_t launch_graph(WorkMode& mode) {
  gpuError_t first = gpuSuccess;
  for (const Work& work : mode.graph) {
    const gpuError_t error = enqueue(mode.captured_on, work);
    if (first == gpuSuccess) first = error;
  }
  return first;
}

gpuError_t run_on_host(gpuStream_t stream, const gpu_exec::Launch& launch,
                       std::function<void()> lane) {
  return enqueue(stream, [machine = stream->machine, launch, lane = std::move(lane)] {
    const Reach reach;
    const std::string fault = machine->run(launch, lane);
    if (fault.empty()) return gpuSuccess;
    std::snprintf(kernel_fault, sizeof kernel_fault, "%s", fault.c_str());
    return gpuErrorKernel;
  });
}

gpuError_t gpuStreamDestroy(gpuStream_t stream) {
  const gpuError_t error = gpuStreamSynchronize(stream);
  const std::shared_ptr<Stream> last = std::move(stream->self);
  return error;
}
gpuError_t gpuStreamSynchronize(gpuStream_t stream) {
  if (stream->mode->is_capturing) return gpuErrorInvalidValue;
  return stream->run_until(stream->enqueued());
}
gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event, int /*flags*/) {
  if (stream->mode->is_capturing) return gpuErrorInvalidValue;
  if (event->stream == nullptr || event->stream.get() == stream) return gpuSuccess;
  return enqueue(stream,
                 [other = event->stream, count = event->count] { return other->run_until(count); });
}
gpuError_t gpu_stream_capturing(gpuStream_t stream, int32_t* out) {
  *out = stream->mode->is_capturing ? 1 : 0;
  return gpuSuccess;
}
gpuError_t gpu_event_create(gpuEvent_t* out) {
  *out = new Event;
  return gpuSuccess;
}
gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
  if (stream->mode->is_capturing) return gpuErrorInvalidValue;
  // Without deferred work there is nothing to wait for, and the stream may be gone by then.
  *event = stream->queue.empty() ? Event{} : Event{stream->self, stream->enqueued()};
  return gpuSuccess;
}
gpuError_t gpuEventDestroy(gpuEvent_t event) {
  delete event;
  return gpuSuccess;
}

const char* gpu_error_text(gpuError_t error) {
  switch (error) {
    case gpuSuccess: return "no error";
    case gpuErrorInvalidValue: return "invalid value";
    case gpuErrorMemoryAllocation: return "out of memory";
    case gpuErrorNoDevice: return "no device";
    case gpuErrorKernel: return kernel_fault;
  }
  return "unknown error";
}

}  // namespace pkv::gpu_host
