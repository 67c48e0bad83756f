#include "core/stop_signals.hpp"

#include <array>
#include <atomic>
#include <csignal>

#include "core/error.hpp"

namespace llamesh {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGUSR2, SIGINT, SIGHUP, SIGPIPE};

std::atomic<unsigned> received = 0;               // bit n: signal n; set by the handler
std::atomic<std::uint32_t*> elsewhere = nullptr;  // same bits
static_assert(std::atomic<unsigned>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t*>::is_always_lock_free);

void note(int signal) {
  const auto bit = 1U << static_cast<unsigned>(signal);
  received.fetch_or(bit);
  if (auto* const bits = elsewhere.load(); bits != nullptr) std::atomic_ref(*bits).fetch_or(bit);
}

}  // namespace

void catch_stop_signals() {
  received = 0;
  for (const int signal : stop_signals) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    if (signal == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    expects(sigaction(signal, &action, nullptr) == 0, "signal {} cannot be handled", signal);
  }
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
