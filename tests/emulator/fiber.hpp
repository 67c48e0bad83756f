#pragma once

#include <cstddef>
#include <memory>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define LLAMESH_FIBER_UCONTEXT 1
#include <ucontext.h>
#endif

namespace llamesh::emulator {

/// A stack and the place at which it stopped. A default one stands for the thread that runs the
/// others; those with an entry start there when they are switched to, and must never return from
/// it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Forgets where it stopped: the next switch to it calls entry().
  void restart(void (*entry)());
  /// Leaves `from`, which must be the one that runs, and goes on with `to`.
  static void switch_from_to(Fiber& from, Fiber& to);

 private:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 18U;
  std::byte* stack_ = nullptr;  // mapped at the first restart(), touched page by page
#ifdef LLAMESH_FIBER_UCONTEXT
  static void begin();
  ucontext_t context_{};
  void (*entry_)() = nullptr;
  void* sanitizer_ = nullptr;
#else
  void* stopped_at_ = nullptr;
#endif
};

}  // namespace llamesh::emulator
