// Fibers: stacks of their own that hand control to one another in a few nanoseconds.
#pragma once
#include <cstddef>

namespace sinkgrad::simt {

/// Where a fiber (or the scheduler) continues when it is switched to.
struct Continuation {
  void* stack_pointer = nullptr;
  // Of its stack, which AddressSanitizer is told at each switch.
  const void* bottom = nullptr;
  size_t bytes = 0;
};

/// A stack with an unmapped page below it, so that an overflow is a fault and not a riddle. Stacks are reused.
class FiberStack {
 public:
  static constexpr size_t kBytes = 256 << 10;
  FiberStack();
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept : base_(other.base_) { other.base_ = nullptr; }
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;
  /// A continuation that enters `entry` on this stack; entry must never return.
  Continuation prepare(void (*entry)()) const;

 private:
  char* base_;
};

/// Saves the caller in `from` and continues `to`.
void switch_fiber(Continuation& from, const Continuation& to);

}  // namespace sinkgrad::simt
