#include "core/text.hpp"

#include <gtest/gtest.h>

namespace llamesh {
namespace {

TEST(ShellWord, IsQuotedIfAShellWouldSplitOrExpandIt) {
  EXPECT_EQ(shell_word("runs/tiny"), "runs/tiny");
  EXPECT_EQ(shell_word("my runs/a"), "'my runs/a'");
  EXPECT_EQ(shell_word("$HOME/a"), "'$HOME/a'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace llamesh
