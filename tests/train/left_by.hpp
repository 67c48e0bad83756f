#pragma once

#include <gtest/gtest.h>

#include <string>

#include "comm/mesh/session.hpp"
#include "core/error.hpp"

namespace llamesh::test {

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

}  // namespace llamesh::test
