#include "core/process.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>

#include "core/error.hpp"

namespace llamesh {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGINT, SIGHUP, SIGPIPE};

std::atomic<unsigned> received = 0;               // bit n: signal n; set by the handler
std::atomic<std::uint32_t*> elsewhere = nullptr;  // same bits
static_assert(std::atomic<unsigned>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t*>::is_always_lock_free);

void note(int signal) {
  const auto bit = 1U << static_cast<unsigned>(signal);
  received.fetch_or(bit);
  if (auto* const bits = elsewhere.load(); bits != nullptr) std::atomic_ref(*bits).fetch_or(bit);
}

/// Gives the calling thread a stack for signal handlers, unless it has one.
void use_signal_stack() {
  alignas(64) static std::array<char, 1 << 16> memory;  // a frame with AMX registers takes 11 KiB
  stack_t stack{};
  expects(sigaltstack(nullptr, &stack) == 0, "the signal stack cannot be queried");
  if ((stack.ss_flags & SS_DISABLE) == 0) return;
  stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  expects(sigaltstack(&stack, nullptr) == 0, "the signal stack cannot be set");
}

}  // namespace

Process& this_process() {
  static Process process = [] {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
    return Process{0, 1, name.data()};
  }();
  return process;
}

std::string output_of(const std::string& command) {
  // popen() creates the process without copying this one's memory.
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 256> part{};
    while (fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
    pclose(pipe);
  }
  return text;
}

void catch_stop_signals() {
  received = 0;
  use_signal_stack();
  for (const int signal : stop_signals) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    if (signal == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    expects(sigaction(signal, &action, nullptr) == 0, "signal {} cannot be handled", signal);
  }
}

void block_stop_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : stop_signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void record_stop_signals_in(std::uint32_t* bits) noexcept {
  elsewhere = bits;
  if (bits != nullptr) std::atomic_ref(*bits).fetch_or(received.load());
}

int received_stop_signal() noexcept {
  const unsigned all = received.load();
  for (const int signal : stop_signals)
    if ((all & (1U << static_cast<unsigned>(signal))) != 0) return signal;
  return 0;
}

}  // namespace llamesh
