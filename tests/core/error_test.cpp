#include "core/error.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "core/tensor.hpp"

namespace llamesh {
namespace {

template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {ExitCode::done, ""};
}

TEST(Validate, PassesWhatIsGood) {
  validate(true, "never seen: {}", 1);
  expects(true, "never seen: {}", 1);
}

TEST(Validate, ThrowsAUserErrorWithTheNumbers) {
  const auto error = error_of([] { validate(false, "{} ranks do not divide {}", 3, 8); });
  EXPECT_EQ(error.code(), ExitCode::bad_input);
  EXPECT_STREQ(error.what(), "3 ranks do not divide 8");
}

/// Whatever a message quotes, it stays one line that is safe to print on a terminal.
TEST(Validate, MessagesAreOneLineOfBoundedLength) {
  const auto error = error_of([] { validate(false, "no '{}'", "a\nb\x1b[2J\r\x7f\u00e9"); });
  EXPECT_STREQ(error.what(), "no 'a b\\x1b[2J \\x7f\u00e9'");
  const std::string endless(1'000'000, 'x');
  const std::string what = error_of([&] { validate(false, "no '{}', mend it", endless); }).what();
  EXPECT_LT(what.size(), 200U);
  EXPECT_EQ(what.find("no 'xxx"), 0U);
  EXPECT_TRUE(what.ends_with("x', mend it"));
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += "words ";
  EXPECT_LT(std::string(error_of([&] { validate(false, "no '{}'", words); }).what()).size(), 5000U);
  const std::string path = '/' + std::string(999, 'x');
  EXPECT_EQ(error_of([&] { validate(false, "no {} there", path); }).what(),
            "no " + path + " there");
}

TEST(Fail, ThrowsWithTheCodeThatItIsGiven) {
  const auto error = error_of([] { fail(ExitCode::io_failure, "cannot write {}", "a.h5"); });
  EXPECT_EQ(error.code(), ExitCode::io_failure);
  EXPECT_STREQ(error.what(), "cannot write a.h5");
}

TEST(Expects, SaysWhereTheBugIs) {
  int line = 0;
  const auto error = error_of([&] {
    line = __LINE__ + 1;
    expects(false, "{} is not {}", "this", "that");
  });
  EXPECT_EQ(error.code(), ExitCode::internal_error);
  const std::string text = error.what();
  EXPECT_TRUE(text.starts_with("this is not that (")) << text;
  EXPECT_NE(text.find("error_test.cpp:" + std::to_string(line) + ", please report this)"),
            std::string::npos)
      << text;
}

TEST(Expects, NamesFilesOfTheSourceFromSrcOn) {
  const std::string text = error_of([] { Tensor(nullptr, DType::f32, {}); }).what();
  EXPECT_NE(text.find("(src/core/tensor.cpp:"), std::string::npos) << text;
}

TEST(AsError, SaysWhoseMistakeItIs) {
  const auto own = as_error(Error(ExitCode::io_failure, "the disk is full"));
  EXPECT_EQ(own.code(), ExitCode::io_failure);
  EXPECT_STREQ(own.what(), "the disk is full");
  const auto path = as_error(std::filesystem::filesystem_error(
      "status", "/a/b", std::make_error_code(std::errc::permission_denied)));
  EXPECT_EQ(path.code(), ExitCode::bad_input);
  EXPECT_STREQ(path.what(), "/a/b: Permission denied");
  const auto disk = as_error(std::filesystem::filesystem_error(
      "resize", "/a/b", std::make_error_code(std::errc::no_space_on_device)));
  EXPECT_EQ(disk.code(), ExitCode::io_failure);
  const auto full = std::make_error_code(std::errc::no_space_on_device);
  EXPECT_EQ(as_error(std::system_error(full, "cannot write to file")).code(), ExitCode::io_failure);
  EXPECT_EQ(as_error(std::bad_alloc()).code(), ExitCode::bad_input);
  const auto bug = as_error(std::logic_error("vector"));
  EXPECT_EQ(bug.code(), ExitCode::internal_error);
  EXPECT_STREQ(bug.what(), "vector (this is a bug, please report it)");
}

TEST(Error, CodesAreThoseThatSchedulersDecideBy) {
  EXPECT_EQ(static_cast<int>(ExitCode::done), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::internal_error), 70);
  EXPECT_EQ(static_cast<int>(ExitCode::io_failure), 74);
  EXPECT_EQ(static_cast<int>(ExitCode::stopped_early), 75);
  EXPECT_EQ(static_cast<int>(ExitCode::bad_input), 78);
  EXPECT_EQ(static_cast<int>(ExitCode::no_progress), 93);
}

TEST(AsError, TooFewThreadsAreNoBug) {
  const auto error = as_error(std::system_error(
      std::make_error_code(std::errc::resource_unavailable_try_again), "std::thread"));
  EXPECT_EQ(error.code(), ExitCode::bad_input);
  EXPECT_NE(std::string(error.what()).find("ulimit -u"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace llamesh
