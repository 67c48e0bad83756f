#include "core/process.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace llamesh {
namespace {

TEST(OutputOf, IsStandardOutputOfAProgramWithoutAShell) {
  EXPECT_EQ(output_of({"printf", "%s\n%s", "$(id); `id` > x", "two words"}),
            "$(id); `id` > x\ntwo words");
  EXPECT_EQ(output_of({"head", "-c", "300000", "/dev/zero"}), std::string(300'000, '\0'));
  EXPECT_EQ(output_of({"cat"}), "");  // its standard input is empty
}

TEST(OutputOf, IsEmptyIfTheProgramCannotBeRun) {
  EXPECT_EQ(output_of({"there-is-no-such-program"}), "");
  EXPECT_EQ(output_of({"/"}), "");
}

TEST(OutputOf, JoinsErrorsIfAsked) {
  const std::vector<std::string> both{"sh", "-c", "echo out; echo error >&2; exit 3"};
  EXPECT_EQ(output_of(both), "out\n");
  EXPECT_EQ(output_of(both, ErrorOutput::joined), "out\nerror\n");
}

TEST(NumberInEnvironment, IsDigitsOnly) {
  const auto number = [](const char* value) {
    setenv("LLAMESH_TEST_NUMBER", value, 1);
    return number_in_environment("LLAMESH_TEST_NUMBER");
  };
  EXPECT_EQ(number("4711"), "4711");
  for (const char* other : {"", "$(touch x)", "1/2", "-1", "7 ", "0x7", "7_1", "../7"})
    EXPECT_EQ(number(other), "") << other;
  unsetenv("LLAMESH_TEST_NUMBER");
  EXPECT_EQ(number_in_environment("LLAMESH_TEST_NUMBER"), "");
}

}  // namespace
}  // namespace llamesh
