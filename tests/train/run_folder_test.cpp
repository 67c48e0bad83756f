#include "train/job/run_folder.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>

#include "core/log.hpp"
#include "runs/small_run.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A fixture that undoes a test's changes to logging.
class RunFolder : public testing::Test {
 protected:
  void TearDown() override { setup_logging(); }
  const fs::path& folder() const { return folder_.path(); }

  static void expect_failure(const std::function<void()>& work, const std::string& part,
                             ExitCode code = ExitCode::io_failure) {
    try {
      work();
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
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
  const std::string earlier = "2026-11-22 08:00:00 of an earlier launch\n";
  std::ofstream(folder() / "log.txt") << earlier;
  for (const char* config : {"a: a long one\n", "b: 2\n"}) {
    open_run_folder(folder());
    write_config(folder(), config);
    EXPECT_EQ(contents(folder() / "config.yaml"), config);
  }
  EXPECT_TRUE(contents(folder() / "log.txt").starts_with(earlier));
}

TEST_F(RunFolder, LeavesALogThatIsNotItsOwnAlone) {
  for (const std::string other : {"my notes of 2026\n", "\n", "2026-11-22 later"}) {
    std::ofstream(folder() / "log.txt") << other;
    open_run_folder(folder());
    spdlog::info("the lamps are lit");
    EXPECT_EQ(contents(folder() / "log.txt.quarantined-1"), other);
    EXPECT_FALSE(contents(folder() / "log.txt").starts_with(other));
    setup_logging();
    fs::remove(folder() / "log.txt.quarantined-1");
  }
}

TEST_F(RunFolder, FailsWhereAFileStandsInTheWay) {
  std::ofstream(folder() / "file") << "x";
  const auto run = folder() / "file" / "run";
  expect_failure([&] { open_run_folder(run); }, (folder() / "file").string());
}

TEST_F(RunFolder, FailsWhereTheConfigCannotBeWritten) {
  fs::create_directories(folder() / "config.yaml");
  expect_failure([&] { write_config(folder(), "a: 1\n"); }, (folder() / "config.yaml").string());
}

TEST_F(RunFolder, FailsWhereTheLogCannotBeWritten) {
  fs::create_directories(folder() / "log.txt");
  expect_failure([&] { open_run_folder(folder()); }, (folder() / "log.txt").string(),
                 ExitCode::bad_input);
}

}  // namespace
}  // namespace llamesh::train
