#include "core/turns.hpp"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/error.hpp"

// Sanitizers must be told which stack is in use.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace llamesh {
namespace {

/// Ends a body whose company has failed.
struct Abandoned {};

}  // namespace

/// A body on its stack.
class Turns::Strand {
 public:
  explicit Strand(Turns& turns) : turns_(turns) {
    void* const memory = mmap(nullptr, stack_bytes + guard_bytes(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    validate(memory != MAP_FAILED, "no memory for a stack of {} bytes", stack_bytes);
    mprotect(memory, guard_bytes(), PROT_NONE);  // stacks grow downwards
    memory_ = static_cast<std::byte*>(memory);
#if defined(__SANITIZE_THREAD__)
    fiber_ = __tsan_create_fiber(0);
#endif
  }
  ~Strand() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fiber_);
#endif
    munmap(memory_, stack_bytes + guard_bytes());
  }
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  bool ended() const {
    return ended_;
  }
  void begin() {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack();
    own_.uc_stack.ss_size = stack_bytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Strand::enter, 0);
    ended_ = false;
  }
  /// Goes on with the body until it yields or ends.
  void resume() {
    resumed_ = this;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack(), stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    caller_fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, 0);
#endif
    swapcontext(&caller_, &own_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }
  /// Goes back to who resumed the body.
  void yield() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ended_ ? nullptr : &fake_stack_, caller_stack_, caller_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(caller_fiber_, 0);
#endif
    swapcontext(&own_, &caller_);
    arrive();
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{8} << 20U;  // only touched pages count
  static std::size_t guard_bytes() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }
  std::byte* stack() const {
    return memory_ + guard_bytes();
  }

  static void enter() {
    auto& self = *resumed_;
    self.arrive();
    self.turns_.run_body();
    self.ended_ = true;
    self.yield();
  }
  void arrive() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(std::exchange(fake_stack_, nullptr), &caller_stack_,
                                    &caller_bytes_);
#endif
  }

  inline static thread_local Strand* resumed_ = nullptr;  // makecontext() passes no pointers
  Turns& turns_;
  std::byte* memory_ = nullptr;
  ucontext_t own_{}, caller_{};
  bool ended_ = true;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* fiber_ = nullptr;
  void* caller_fiber_ = nullptr;
#endif
};

Turns::Turns(int count) {
  for (int i = 0; i < count; ++i) strands_.push_back(std::make_unique<Strand>(*this));
}

Turns::~Turns() = default;

void Turns::run(const std::function<void(int)>& body) {
  body_ = &body;
  for (const auto& strand : strands_) strand->begin();
  const auto has_ended = [](const auto& strand) { return strand->ended(); };
  while (!std::ranges::all_of(strands_, has_ended))
    for (current_ = 0; current_ < count(); ++current_)
      if (auto& strand = *strands_[static_cast<std::size_t>(current_)]; !strand.ended())
        strand.resume();
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void Turns::run_body() {
  if (failed_) return;
  try {
    (*body_)(current_);
  } catch (const Abandoned&) {
  } catch (...) {
    failed_ = std::current_exception();
  }
}

void Turns::meet(const std::function<void()>& first, IfFailed if_failed) {
  if (!failed_) {
    if (first) first();
    strands_[static_cast<std::size_t>(current_)]->yield();
  }
  if (failed_ && if_failed == IfFailed::throws) throw Abandoned();
}

}  // namespace llamesh
