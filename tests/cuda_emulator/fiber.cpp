#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace llamesh::emulator {
namespace {

thread_local Fiber* leaving = nullptr;
thread_local Fiber* arriving = nullptr;

std::byte* map_stack(std::size_t bytes) {
  void* stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(stack);
}

}  // namespace

// --- Sanitizer notifications ---

/// Call just before leaving this fiber, which is running.
void Fiber::leave_for([[maybe_unused]] const Fiber& to) {
#ifdef __SANITIZE_THREAD__
  if (!stack_) sanitizer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_, 0);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&sanitizer_, to.known_stack_, to.known_bytes_);
#endif
}

/// Call first on this fiber's stack.
void Fiber::arrived() {
#ifdef __SANITIZE_ADDRESS__
  // Only a fiber that was left before has something to restore. The thread's own stack is known
  // once it is first left.
  __sanitizer_finish_switch_fiber(sanitizer_, leaving->stack_ ? nullptr : &leaving->known_stack_,
                                  leaving->stack_ ? nullptr : &leaving->known_bytes_);
#endif
}

/// Clears redzones: whatever ran on this stack never returned, so its variables are still marked.
void Fiber::forget_borders() {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack_, stack_bytes);
#endif
}

void Fiber::begin() {
  arriving->arrived();
  arriving->entry_();
}

Fiber::Fiber() = default;

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  if (stack_ && sanitizer_) __tsan_destroy_fiber(sanitizer_);
#endif
  if (stack_) {
    forget_borders();  // for the next mapping here
    munmap(stack_, stack_bytes);
  }
}

#ifdef __x86_64__

// Saves the callee-saved registers and switches stacks. Takes a few nanoseconds; swapcontext()
// takes a system call.
extern "C" void llamesh_switch_stack(void** stopped_at, void* go_on_at);
asm(R"(
.text
.globl llamesh_switch_stack
.type llamesh_switch_stack, @function
llamesh_switch_stack:
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
.size llamesh_switch_stack, .-llamesh_switch_stack
)");

#endif

void Fiber::restart(void (*entry)()) {
  if (!stack_) stack_ = map_stack(stack_bytes);
  entry_ = entry;
  forget_borders();
  known_stack_ = stack_;
  known_bytes_ = stack_bytes;
#ifdef __SANITIZE_THREAD__
  if (sanitizer_) __tsan_destroy_fiber(sanitizer_);
  sanitizer_ = __tsan_create_fiber(0);
#else
  sanitizer_ = nullptr;
#endif
#ifdef __x86_64__
  // Looks as if begin() had been called from nowhere and then stopped: a null return address on
  // top, begin()'s address below, then six registers.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + stack_bytes);
  std::memset(top - 8, 0, 8 * sizeof *top);
  top[-2] = reinterpret_cast<std::uintptr_t>(&Fiber::begin);
  stopped_at_ = top - 8;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::begin, 0);
#endif
}

void Fiber::switch_from_to(Fiber& from, Fiber& to) {
  leaving = &from;
  arriving = &to;
  from.leave_for(to);
#ifdef __x86_64__
  llamesh_switch_stack(&from.stopped_at_, to.stopped_at_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
  from.arrived();
}

}  // namespace llamesh::emulator
