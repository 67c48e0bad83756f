#include "train/job/deadline.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/process.hpp"
#include "patience.hpp"
#include "temporary_folder.hpp"

namespace llamesh::train {
namespace {

class DeadlineTest : public testing::Test {
 protected:
  void SetUp() override {
    catch_stop_signals();
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_END_TIME");
  }
  test::TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(DeadlineTest, AsksNothingByItself) {
  Deadline deadline(folder_, true);
  EXPECT_EQ(deadline.asked(1, 1), Stop::no);
  EXPECT_EQ(deadline.seconds_left(), std::nullopt);
}

TEST_F(DeadlineTest, HearsSignalsAndTheStrongestOneCounts) {
  std::raise(SIGPIPE);  // even before the object exists
  Deadline deadline(folder_, false);
  EXPECT_EQ(deadline.asked(1, 1), Stop::broken_pipe);
  std::raise(SIGHUP);
  EXPECT_EQ(deadline.asked(1, 1), Stop::hangup);
  std::raise(SIGINT);
  EXPECT_EQ(deadline.asked(1, 1), Stop::interrupt);
  std::raise(SIGUSR2);
  EXPECT_EQ(deadline.asked(1, 1), Stop::user_signal_2);
  std::raise(SIGTERM);
  std::raise(SIGTERM);  // a second one must not kill either
  std::raise(SIGUSR2);
  EXPECT_EQ(deadline.asked(1, 1), Stop::terminate);
  EXPECT_EQ(describe(Stop::terminate, folder_), "SIGTERM");
  catch_stop_signals();
  EXPECT_EQ(deadline.asked(1, 1), Stop::no);
}

TEST_F(DeadlineTest, SeesTheHaltFileOnTheRankThatWatches) {
  std::ofstream(Deadline::halt_file(folder_)) << "";
  EXPECT_EQ(Deadline(folder_, true).asked(1, 1), Stop::halt_file);
  EXPECT_EQ(Deadline(folder_, false).asked(1, 1), Stop::no);
}

TEST_F(DeadlineTest, SeesAHaltFileThatIsALinkToNothing) {
  EXPECT_FALSE(Deadline::halt_file_is_there(folder_));
  std::filesystem::create_symlink("nowhere", Deadline::halt_file(folder_));
  EXPECT_TRUE(Deadline::halt_file_is_there(folder_));
  EXPECT_EQ(Deadline(folder_, true).asked(1, 1), Stop::halt_file);
}

TEST_F(DeadlineTest, StopsWhenTheLeadIsReached) {
  setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 20'000).c_str(), 1);
  Deadline deadline(folder_, true);
  const auto left = deadline.seconds_left().value_or(0);
  EXPECT_LE(left, 20'000);
  EXPECT_GT(left, 10'000);
  EXPECT_EQ(deadline.asked(/*save*/ 5'000, /*step*/ 10), Stop::no);  // 10,070 s of lead
  EXPECT_EQ(deadline.asked(10'000, 10), Stop::walltime);             // 20,070 s
  unsetenv("SLURM_JOB_END_TIME");
}

/// Somebody gives the job more time after Slurm was last asked.
TEST_F(DeadlineTest, AsksForTheLimitAgainBeforeTheRunStops) {
  const std::string path = std::getenv("PATH");
  temporary_.write("squeue", "#!/bin/sh\ncat '" + temporary_.path("left") + "'\n");
  std::filesystem::permissions(folder_ / "squeue", std::filesystem::perms::owner_all);
  temporary_.write("left", "1:00:00\n");
  setenv("PATH", (folder_.string() + ":" + path).c_str(), 1);
  setenv("SLURM_JOB_ID", "1", 1);
  {
    Deadline deadline(folder_, true);
    ASSERT_TRUE(deadline.seconds_left(test::stretched(std::chrono::seconds(60))));
    EXPECT_EQ(deadline.asked(/*save*/ 10'000, /*step*/ 10), Stop::walltime);
    temporary_.write("left", "1-00:00:00\n");
    EXPECT_EQ(deadline.asked(10'000, 10), Stop::no);
  }
  setenv("PATH", path.c_str(), 1);
  unsetenv("SLURM_JOB_ID");
}

}  // namespace
}  // namespace llamesh::train
