// Capturing what is enqueued on a stream: CUDA's driver, found when the program runs, or the device
// options of gpu-host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pariskv/pariskv.hpp"

namespace pkv::cache_check {

class Graph {
 public:
  virtual ~Graph() = default;
  virtual Stream& stream() = 0;
  virtual pkv_device_type device_type() const = 0;  // of the device's memory
  // What is enqueued on the stream between these is kept, and does not run.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void launch() = 0;
  virtual int64_t free_bytes() = 0;  // of the device's memory; 0: not known
};

// For an open device of this backend.
std::unique_ptr<Graph> make_graph(Device& device, const std::string& backend);

}  // namespace pkv::cache_check
