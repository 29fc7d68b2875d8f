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
#include <sanitizer/asan_interface.h>
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
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kStackBegins = 16;

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
// What the last frames of an older fiber have left poisoned at these addresses.
void clean_stack([[maybe_unused]] const void* bottom, [[maybe_unused]] std::size_t bytes) {
#if defined(PKV_ASAN)
  __asan_unpoison_memory_region(bottom, bytes);
#endif
}
void tell_tsan([[maybe_unused]] void* fiber) {
#if defined(PKV_TSAN)
  __tsan_switch_to_fiber(fiber, 0);
#endif
}

}  // namespace

// A stack with a page behind it that traps. Stacks begin at several places of their first page:
// what lanes have on theirs would share a few sets of a cache, were it at the same place of each.
struct Fiber::Stack {
  Fiber* fiber;
  std::size_t begin;  // bytes
  boost::context::protected_fixedsize_stack pages{kStackBytes};

  boost::context::stack_context allocate() {
    boost::context::stack_context context = pages.allocate();
    context.sp = static_cast<char*>(context.sp) - begin;
    context.size -= begin;
    fiber->stack_bottom_ = static_cast<char*>(context.sp) - context.size;
    fiber->stack_bytes_ = context.size;
    clean_stack(fiber->stack_bottom_, fiber->stack_bytes_);
    return context;
  }
  void deallocate(boost::context::stack_context& context) {
    context.sp = static_cast<char*>(context.sp) + begin;
    context.size += begin;
    pages.deallocate(context);
  }
};

Fiber::Fiber(FiberCaller& caller) : caller_(caller) {
  const std::size_t begin = caller.fibers_++ % kStackBegins * (kPageBytes / kStackBegins);
#if defined(PKV_TSAN)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  context_ = boost::context::fiber(
      std::allocator_arg, Stack{this, begin}, [this](boost::context::fiber&& left) {
        enter(std::move(left));
        loop();
        caller_.left_ = &context_;
        leave_stack(nullptr, caller_.stack_bottom_, caller_.stack_bytes_);
        tell_tsan(caller_.tsan_fiber_);
        return std::move(caller_.context_);
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
  caller_.tsan_fiber_ = __tsan_get_current_fiber();
#endif
  caller_.left_ = &caller_.context_;
  void* fake = nullptr;
  leave_stack(&fake, stack_bottom_, stack_bytes_);
  tell_tsan(tsan_fiber_);
  boost::context::fiber left = std::move(context_).resume();
  *caller_.left_ = std::move(left);
  enter_stack(fake, nullptr, nullptr);
}

void Fiber::pause() {
  leave_for(caller_.context_, caller_.stack_bottom_, caller_.stack_bytes_, caller_.tsan_fiber_);
}

void Fiber::change_to(Fiber& other) {
  leave_for(other.context_, other.stack_bottom_, other.stack_bytes_, other.tsan_fiber_);
}

// Suspends this fiber; returns when it is resumed.
void Fiber::leave_for(boost::context::fiber& context, const void* bottom, std::size_t bytes,
                      void* tsan_fiber) {
  caller_.left_ = &context_;
  leave_stack(&fake_stack_, bottom, bytes);
  tell_tsan(tsan_fiber);
  enter(std::move(context).resume());
}

// First on this fiber's stack after a change to it from `left`.
void Fiber::enter(boost::context::fiber&& left) {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  enter_stack(fake_stack_, &bottom, &bytes);
  if (caller_.left_ == &caller_.context_) {
    caller_.stack_bottom_ = bottom;
    caller_.stack_bytes_ = bytes;
  }
  *caller_.left_ = std::move(left);
}

void Fiber::loop() {
  while (!quits_) {
    task_();
    task_ = nullptr;
    pause();
  }
}

}  // namespace pkv::gpu_exec
