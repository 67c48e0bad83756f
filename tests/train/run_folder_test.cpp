#include "train/run_folder.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>

#include "core/log.hpp"
#include "training/small_run.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Takes what a test adds to the log away again.
class RunFolder : public testing::Test {
 protected:
  void TearDown() override { setup_logging(); }
  const fs::path& folder() const { return folder_.path(); }

  static void expect_failure(const std::function<void()>& work, const std::string& part) {
    try {
      work();
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io_failure);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(RunFolder, IsMadeWithItsParents) {
  const fs::path run = folder() / "runs" / "deep" / "one";
  EXPECT_EQ(open_run_folder(run), run / "metrics.jsonl");
  EXPECT_FALSE(fs::exists(run / "config.yaml")) << "nobody knows yet whether the run goes on";
  EXPECT_FALSE(fs::exists(run / "metrics.jsonl"));
}

TEST_F(RunFolder, HoldsTheLog) {
  open_run_folder(folder());
  spdlog::info("the lamps are lit");
  EXPECT_NE(contents(folder() / "log.txt").find("the lamps are lit\n"), std::string::npos);
}

TEST_F(RunFolder, MayExist) {
  std::ofstream(folder() / "log.txt") << "of an earlier start\n";
  for (const char* config : {"a: a long one\n", "b: 2\n"}) {
    open_run_folder(folder());
    write_config(folder(), config);
    EXPECT_EQ(contents(folder() / "config.yaml"), config);
  }
  EXPECT_TRUE(contents(folder() / "log.txt").starts_with("of an earlier start\n"));
}

TEST_F(RunFolder, FailsWhereAFileStandsInTheWay) {
  std::ofstream(folder() / "file") << "x";
  const auto run = folder() / "file" / "run";
  expect_failure([&] { open_run_folder(run); }, run.string());
}

TEST_F(RunFolder, FailsWhereTheConfigCannotBeWritten) {
  fs::create_directories(folder() / "config.yaml");
  expect_failure([&] { write_config(folder(), "a: 1\n"); }, (folder() / "config.yaml").string());
}

TEST_F(RunFolder, FailsWhereTheLogCannotBeWritten) {
  fs::create_directories(folder() / "log.txt");
  expect_failure([&] { open_run_folder(folder()); }, (folder() / "log.txt").string());
}

}  // namespace
}  // namespace llamesh::train
