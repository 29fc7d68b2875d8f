// A fiber that runs one task after another, and tells the sanitizers about each change of stacks.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <functional>

namespace pkv::gpu_exec {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Gives the fiber, which has none, a task. It must not throw.
  void start(std::function<void()> task) { task_ = std::move(task); }
  // Runs it until it pauses or ends.
  void resume();
  bool has_ended() const { return task_ == nullptr; }

  // From within the task: back to the caller of resume.
  void pause();

 private:
  struct Stack;
  void loop();

  boost::context::fiber fiber_;   // while the task is suspended
  boost::context::fiber caller_;  // while it runs
  std::function<void()> task_;
  bool quits_ = false;
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  // Kept for the sanitizers.
  void* fake_stack_ = nullptr;
  const void* caller_bottom_ = nullptr;
  std::size_t caller_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
};

}  // namespace pkv::gpu_exec
