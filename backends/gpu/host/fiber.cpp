#include "backends/gpu/host/fiber.h"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define PKV_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PKV_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define PKV_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PKV_TSAN 1
#endif
#endif

#if defined(PKV_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(PKV_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace pkv::gpu_exec {
namespace {

#if defined(PKV_ASAN) || defined(PKV_TSAN)
constexpr std::size_t kStackBytes = std::size_t{512} << 10;  // sanitizers widen frames
#else
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
#endif

// Before and after a change of stacks. `fake`: where the stack that is left keeps its own; NULL: it
// ends.
void leave_stack([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
                 [[maybe_unused]] std::size_t bytes) {
#if defined(PKV_ASAN)
  __sanitizer_start_switch_fiber(fake, bottom, bytes);
#endif
}
void enter_stack([[maybe_unused]] void* fake, [[maybe_unused]] const void** left_bottom,
                 [[maybe_unused]] std::size_t* left_bytes) {
#if defined(PKV_ASAN)
  __sanitizer_finish_switch_fiber(fake, left_bottom, left_bytes);
#endif
}
void tell_tsan([[maybe_unused]] void* fiber) {
#if defined(PKV_TSAN)
  __tsan_switch_to_fiber(fiber, 0);
#endif
}

}  // namespace

// A stack with a page behind it that traps.
struct Fiber::Stack {
  Fiber* fiber;
  boost::context::protected_fixedsize_stack pages{kStackBytes};

  boost::context::stack_context allocate() {
    boost::context::stack_context context = pages.allocate();
    fiber->stack_bottom_ = static_cast<char*>(context.sp) - context.size;
    fiber->stack_bytes_ = context.size;
    return context;
  }
  void deallocate(boost::context::stack_context& context) { pages.deallocate(context); }
};

Fiber::Fiber() {
#if defined(PKV_TSAN)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  fiber_ = boost::context::fiber(std::allocator_arg, Stack{this},
                                 [this](boost::context::fiber&& caller) {
                                   enter_stack(nullptr, &caller_bottom_, &caller_bytes_);
                                   caller_ = std::move(caller);
                                   loop();
                                   leave_stack(nullptr, caller_bottom_, caller_bytes_);
                                   tell_tsan(tsan_caller_);
                                   return std::move(caller_);
                                 });
}

Fiber::~Fiber() {
  quits_ = true;
  resume();
#if defined(PKV_TSAN)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void Fiber::resume() {
#if defined(PKV_TSAN)
  tsan_caller_ = __tsan_get_current_fiber();
#endif
  void* fake = nullptr;
  leave_stack(&fake, stack_bottom_, stack_bytes_);
  tell_tsan(tsan_fiber_);
  fiber_ = std::move(fiber_).resume();
  enter_stack(fake, nullptr, nullptr);
}

void Fiber::pause() {
  leave_stack(&fake_stack_, caller_bottom_, caller_bytes_);
  tell_tsan(tsan_caller_);
  caller_ = std::move(caller_).resume();
  enter_stack(fake_stack_, &caller_bottom_, &caller_bytes_);
}

void Fiber::loop() {
  while (!quits_) {
    task_();
    task_ = nullptr;
    pause();
  }
}

}  // namespace pkv::gpu_exec
