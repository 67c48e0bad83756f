#pragma once

#include <cstddef>
#include <span>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace llamesh::emulator {

/// A stack and the point where it stopped. A default fiber stands for the thread that runs the
/// others. A fiber with an entry starts there when first switched to, and must never return from
/// it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Resets the fiber: the next switch to it calls entry().
  void restart(void (*entry)());
  std::span<const std::byte> stack() const { return {stack_, stack_ ? stack_bytes : 0}; }
  /// Leaves `from`, which must be running, and continues with `to`.
  static void switch_from_to(Fiber& from, Fiber& to);

 private:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 17U;
  static void begin();
  void leave_for(const Fiber& to);
  void arrived();
  void forget_borders();

  std::byte* stack_ = nullptr;  // mapped at the first restart(), touched page by page
  void (*entry_)() = nullptr;
#ifdef __x86_64__
  void* stopped_at_ = nullptr;
#else
  ucontext_t context_{};
#endif
  // Stack data for the sanitizers.
  void* sanitizer_ = nullptr;
  const void* known_stack_ = nullptr;
  std::size_t known_bytes_ = 0;
};

}  // namespace llamesh::emulator
