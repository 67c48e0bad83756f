#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.hpp"

namespace llamesh::test {

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

}  // namespace llamesh::test
