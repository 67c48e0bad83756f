#include "core/text.hpp"

#include <gtest/gtest.h>

namespace llamesh {
namespace {

TEST(ByteSize, TakesNumbersAndUnits) {
  EXPECT_EQ(parse_byte_size("0"), 0);
  EXPECT_EQ(parse_byte_size("4096"), 4096);
  EXPECT_EQ(parse_byte_size("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_byte_size("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("1.5KB"), 1500);
  EXPECT_EQ(parse_byte_size("1.5TiB"), 3 * (std::int64_t{1} << 39));
  EXPECT_EQ(parse_byte_size("512MiB"), 512 << 20);
}

TEST(ByteSize, RefusesOtherText) {
  for (const char* text : {"", "GB", "80Gb", "80G", "-1GB", "1.5B", "nan", "inf", "1e300",
                           "9223372036854775808", "80GB ", "8 0GB"})
    EXPECT_FALSE(parse_byte_size(text)) << text;
}

TEST(ParametersText, KeepsThreeDigits) {
  EXPECT_EQ(parameters_text(0), "0");
  EXPECT_EQ(parameters_text(999), "999");
  EXPECT_EQ(parameters_text(1234567), "1.23 M");
  EXPECT_EQ(parameters_text(26960), "27.0 k");
  EXPECT_EQ(parameters_text(999999), "1.00 M");
  EXPECT_EQ(parameters_text(8'030'261'248), "8.03 B");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[2J\a\r\n\x7f"), "a\\x1b[2J\\x07\\x0d\\x0a\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("a\u202eb\u2066c\u2028"), "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xe2\\x80\\xa8");
  EXPECT_EQ(printable("\u061c\u200f"), "\\xd8\\x9c\\xe2\\x80\\x8f");
  EXPECT_EQ(printable("\u009b2J, \u0080 and \u009f"), "\\xc2\\x9b2J, \\xc2\\x80 and \\xc2\\x9f");
}

TEST(Printable, LeavesTextAsItIs) {
  for (const char* text : {"", "runs/tiny", "caf\u00e9 \u00a0 \u20ac \U0001f600", "\xc2", "\xff"})
    EXPECT_EQ(printable(text), text);
}

TEST(Excerpt, IsCutBehindAWholeCharacter) {
  const std::string whole(120, 'x');
  EXPECT_EQ(excerpt(whole), whole);
  EXPECT_EQ(excerpt(whole + 'x'), whole + "...");
  const std::string longest(119, 'x');
  EXPECT_EQ(excerpt(longest + "\u20ac and more"), longest + "...");
  EXPECT_EQ(excerpt(std::string(1'000'000, '\x80')).size(), 120U);
  EXPECT_EQ(excerpt("\x1b" + whole), "\\x1b" + std::string(119, 'x') + "...");
}

TEST(ShellWord, IsQuotedIfAShellWouldSplitOrExpandIt) {
  EXPECT_EQ(shell_word("runs/tiny"), "runs/tiny");
  EXPECT_EQ(shell_word("my runs/a"), "'my runs/a'");
  EXPECT_EQ(shell_word("$HOME/a"), "'$HOME/a'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace llamesh
