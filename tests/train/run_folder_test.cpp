#include "train/run_folder.hpp"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <iterator>

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
  void TearDown() override { spdlog::default_logger()->sinks().resize(sinks_); }
  const fs::path& folder() const { return folder_.path(); }

  void expect_failure(const fs::path& run, const std::string& part) const {
    try {
      open_run_folder(run, "a: 1\n");
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io_failure);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

 private:
  test::TemporaryFolder folder_;
  std::size_t sinks_ = spdlog::default_logger()->sinks().size();
};

TEST_F(RunFolder, IsMadeWithItsParents) {
  const fs::path run = folder() / "runs" / "deep" / "one";
  EXPECT_EQ(open_run_folder(run, "a: 1\n"), run / "metrics.jsonl");
  EXPECT_EQ(contents(run / "config.yaml"), "a: 1\n");
  EXPECT_FALSE(fs::exists(run / "metrics.jsonl"));
}

TEST_F(RunFolder, HoldsTheLog) {
  open_run_folder(folder(), "");
  spdlog::info("the lamps are lit");
  EXPECT_NE(contents(folder() / "log.txt").find("the lamps are lit\n"), std::string::npos);
}

TEST_F(RunFolder, MayExist) {
  std::ofstream(folder() / "log.txt") << "of an earlier start\n";
  open_run_folder(folder(), "a: a long one\n");
  open_run_folder(folder(), "b: 2\n");
  EXPECT_EQ(contents(folder() / "config.yaml"), "b: 2\n");
  EXPECT_TRUE(contents(folder() / "log.txt").starts_with("of an earlier start\n"));
}

TEST_F(RunFolder, FailsWhereAFileStandsInTheWay) {
  std::ofstream(folder() / "file") << "x";
  expect_failure(folder() / "file" / "run", (folder() / "file" / "run").string());
}

TEST_F(RunFolder, FailsWhereTheConfigCannotBeWritten) {
  fs::create_directories(folder() / "config.yaml");
  expect_failure(folder(), (folder() / "config.yaml").string());
}

TEST_F(RunFolder, FailsWhereTheLogCannotBeWritten) {
  fs::create_directories(folder() / "log.txt");
  expect_failure(folder(), (folder() / "log.txt").string());
}

}  // namespace
}  // namespace llamesh::train
