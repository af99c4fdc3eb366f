// The switch saves the registers that a call preserves and changes the stack pointer; nothing else is a thread's own here.
#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
asm(R"(
.text
.globl sinkgrad_switch_fiber
.type sinkgrad_switch_fiber, @function
sinkgrad_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sinkgrad_switch_fiber, .-sinkgrad_switch_fiber
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl sinkgrad_switch_fiber
.type sinkgrad_switch_fiber, %function
sinkgrad_switch_fiber:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size sinkgrad_switch_fiber, .-sinkgrad_switch_fiber
)");
#else
#error "the host executor switches fibers on x86-64 and aarch64 only"
#endif
extern "C" void sinkgrad_switch_fiber(void** save, void* load);

namespace sinkgrad::simt {

namespace {

constexpr size_t kGuard = 4096;

#ifdef __SANITIZE_ADDRESS__
void (*g_entry)() = nullptr;
Continuation* g_from = nullptr;

/// Enters a fiber for the first time. Whoever switched to it may be a thread, whose stack only the sanitizer knows.
void begin_fiber() {
  __sanitizer_finish_switch_fiber(nullptr, &g_from->bottom, &g_from->bytes);
  g_entry();
}
#endif

}  // namespace

FiberStack::FiberStack() {
  void* p = mmap(nullptr, kBytes + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  base_ = static_cast<char*>(p);
  mprotect(base_, kGuard, PROT_NONE);
}

FiberStack::~FiberStack() {
  if (base_) munmap(base_, kBytes + kGuard);
}

Continuation FiberStack::prepare(void (*entry)()) const {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(base_ + kGuard, kBytes);  // the fiber that had this stack never returned from its frames
  g_entry = entry;
  entry = begin_fiber;
#endif
  auto top = reinterpret_cast<uintptr_t>(base_ + kGuard + kBytes) & ~uintptr_t{63};
#if defined(__x86_64__)
  auto* sp = reinterpret_cast<void**>(top - 72);
  sp[0] = nullptr;  // a return address for unwinders to stop at; entry sees the stack as after a call
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
#else
  auto* sp = reinterpret_cast<void**>(top - 160);
  for (int i = 0; i < 20; ++i) sp[i] = nullptr;
  sp[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  return {sp, base_ + kGuard, kBytes};
}

void switch_fiber(Continuation& from, const Continuation& to) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  g_from = &from;
  __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.bytes);
  sinkgrad_switch_fiber(&from.stack_pointer, to.stack_pointer);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  sinkgrad_switch_fiber(&from.stack_pointer, to.stack_pointer);
#endif
}

}  // namespace sinkgrad::simt
