// When the work of streams runs. At once, unless the device is told otherwise by options:
//   streams=deferred  only once somebody waits for the stream, which finds what reads too late or
//                     writes too early;  streams=immediate
//   graph=capture     work of all streams is kept for a graph, and does not run;  graph=end
//   graph=launch      the graph's work once more, on the stream where it was captured
// With one thread per device: nothing is locked.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "backends/gpu/host/runtime.h"

namespace pkv::gpu_host {

// Of a device.
struct WorkMode {
  bool is_deferred = false;
  bool is_capturing = false;
  std::vector<Work> graph;
  Stream* captured_on = nullptr;  // the last stream of the capture; outlives the launches
};

struct Stream {
  gpu_exec::Machine* machine;
  WorkMode* mode;
  std::deque<Work> queue;
  std::size_t done = 0;  // of all that was enqueued
  // Until it is destroyed; events that were recorded on it, and waits for these, outlive it.
  std::shared_ptr<Stream> self = nullptr;

  // Until so many have run; the first error.
  gpuError_t run_until(std::size_t count);
  std::size_t enqueued() const { return done + queue.size(); }
};

struct Event {
  std::shared_ptr<Stream> stream;  // NULL: nothing recorded
  std::size_t count = 0;
};

gpuError_t launch_graph(WorkMode& mode);

}  // namespace pkv::gpu_host
