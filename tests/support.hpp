#pragma once

#include <gtest/gtest.h>

#include <string>

#include "comm/mpi/communicator.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"

// Defined by every sanitizer's library. No compiler macro would do: with AddressSanitizer, tests
// are compiled without it (tests/CMakeLists.txt).
extern "C" void __sanitizer_set_death_callback(void (*)())  // NOLINT(bugprone-reserved-identifier)
    __attribute__((weak));

namespace llamesh::test {

/// Returns all ranks in this test program.
const comm::Communicator& world();

/// Runs `action`, which must throw a one-line user error (exit 78); returns its text.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

/// Returns this rank's message when the action fails with this code: "follows" if another rank
/// reports, and "" if there is no error.
template <class Action>
std::string left_by(const Action& action, ExitCode code) {
  try {
    action();
  } catch (const comm::PeerFailure& failed) {
    EXPECT_EQ(failed.code(), code);
    return "follows";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

/// True if a sanitizer makes the tests some ten times slower.
inline const bool sanitized = &__sanitizer_set_death_callback != nullptr;

}  // namespace llamesh::test
