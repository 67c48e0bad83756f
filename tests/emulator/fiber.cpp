#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace llamesh::emulator {
namespace {

std::byte* map_stack(std::size_t bytes) {
  void* stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(stack);
}

}  // namespace

#ifdef LLAMESH_FIBER_UCONTEXT

// The portable way, a system call each time; it also tells the sanitizers what goes on.

Fiber::Fiber() = default;

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  if (stack_ && sanitizer_) __tsan_destroy_fiber(sanitizer_);
#endif
  if (stack_) munmap(stack_, stack_bytes);
}

namespace {
thread_local Fiber* arriving = nullptr;
#ifdef __SANITIZE_ADDRESS__
thread_local const void* main_stack = nullptr;
thread_local std::size_t main_stack_bytes = 0;
thread_local bool from_main = false;
#endif
}  // namespace

void Fiber::begin() {
#ifdef __SANITIZE_ADDRESS__
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (from_main) {
    main_stack = stack;
    main_stack_bytes = bytes;
  }
#endif
  arriving->entry_();
}

void Fiber::restart(void (*entry)()) {
  if (!stack_) stack_ = map_stack(stack_bytes);
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::begin, 0);
  entry_ = entry;
#ifdef __SANITIZE_THREAD__
  if (sanitizer_) __tsan_destroy_fiber(sanitizer_);
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

void Fiber::switch_from_to(Fiber& from, Fiber& to) {
  arriving = &to;
#ifdef __SANITIZE_THREAD__
  if (!from.stack_) from.sanitizer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_, 0);
#endif
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  from_main = !from.stack_;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack_ ? to.stack_ : main_stack,
                                 to.stack_ ? stack_bytes : main_stack_bytes);
#endif
  swapcontext(&from.context_, &to.context_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

#else

// Saves the registers that a callee must keep, and changes stacks: a few nanoseconds.
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

Fiber::Fiber() = default;

Fiber::~Fiber() {
  if (stack_) munmap(stack_, stack_bytes);
}

void Fiber::restart(void (*entry)()) {
  if (!stack_) stack_ = map_stack(stack_bytes);
  // As if entry() had been called from nowhere and then stopped: a null return address on top, its
  // own address below, six registers below that.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + stack_bytes);
  std::memset(top - 8, 0, 8 * sizeof *top);
  top[-2] = reinterpret_cast<std::uintptr_t>(entry);
  stopped_at_ = top - 8;
}

void Fiber::switch_from_to(Fiber& from, Fiber& to) {
  llamesh_switch_stack(&from.stopped_at_, to.stopped_at_);
}

#endif

}  // namespace llamesh::emulator
