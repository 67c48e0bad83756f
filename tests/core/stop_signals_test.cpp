#include "core/process.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace llamesh {
namespace {

constexpr int stop_signals[] = {SIGTERM, SIGUSR2, SIGINT, SIGHUP, SIGPIPE};

/// Handles the signals during a test.
class StopSignals : public testing::Test {
 protected:
  StopSignals() { catch_stop_signals(); }
  ~StopSignals() override {
    for (const int signal : stop_signals) std::signal(signal, SIG_DFL);
  }
};

TEST_F(StopSignals, TheFirstOfTheListIsReturned) {
  EXPECT_EQ(received_stop_signal(), 0);
  std::raise(SIGUSR2);
  EXPECT_EQ(received_stop_signal(), SIGUSR2);
  std::raise(SIGTERM);
  EXPECT_EQ(received_stop_signal(), SIGTERM);
  catch_stop_signals();
  EXPECT_EQ(received_stop_signal(), 0);
}

// A kernel compiled by oneDNN may use the stack pointer for other memory.
TEST_F(StopSignals, HandlersRunOnAStackOfTheirOwn) {
  stack_t stack{};
  ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
  EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
  EXPECT_GE(stack.ss_size, std::size_t{16} << 10);
  for (const int signal : stop_signals) {
    struct sigaction action {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0) << signal;
  }
}

TEST_F(StopSignals, AThreadThatBlocksThemReceivesNone) {
  sigset_t before;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  block_stop_signals();
  std::raise(SIGHUP);
  EXPECT_EQ(received_stop_signal(), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  EXPECT_EQ(received_stop_signal(), SIGHUP);
}

}  // namespace
}  // namespace llamesh
