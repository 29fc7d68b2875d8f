// Fibers that run one task after another, and tell the sanitizers about each change of stacks.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <functional>

namespace pkv::gpu_exec {

class Fiber;

// Who resumed one of the fibers that change to each other, one thread at a time.
class FiberCaller {
 private:
  friend class Fiber;
  std::size_t fibers_ = 0;                 // made so far
  boost::context::fiber context_;          // while a fiber runs
  boost::context::fiber* left_ = nullptr;  // where what is left at a change of stacks is kept
  // For the sanitizers.
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
};

class Fiber {
 public:
  explicit Fiber(FiberCaller& caller);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Gives the fiber, which has none, a task. It must not throw.
  void start(std::function<void()> task) { task_ = std::move(task); }
  // Runs it until it, or another that it changes to, pauses or ends.
  void resume();
  bool has_ended() const { return task_ == nullptr; }

  // From within the task: back to the caller of resume.
  void pause();
  // From within the task: resumes another fiber of the same caller, in place of this one.
  void change_to(Fiber& other);

 private:
  struct Stack;
  void loop();
  void leave_for(boost::context::fiber& context, const void* bottom, std::size_t bytes,
                 void* tsan_fiber);
  void enter(boost::context::fiber&& left);

  FiberCaller& caller_;
  boost::context::fiber context_;  // while the task is suspended
  std::function<void()> task_;
  bool quits_ = false;
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  // Kept for the sanitizers.
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
};

}  // namespace pkv::gpu_exec
