#include "train/preflight.hpp"

#include <gtest/gtest.h>

#include "training/small_run.hpp"

namespace llamesh::train {
namespace {

using test::world;

TEST(OddOnesOut, AreThoseThatDifferFromMost) {
  EXPECT_EQ(odd_ones_out({"a", "a", "a"}), std::vector<int>{});
  EXPECT_EQ(odd_ones_out({"b", "a", "a", "c"}), (std::vector<int>{0, 3}));
  EXPECT_EQ(odd_ones_out({"a", "b"}), std::vector<int>{1});  // of equals rank 0's counts
}

TEST(Verdict, NamesEachBadHostOnceAndHowToLeaveItOut) {
  EXPECT_EQ(verdict({{"build", "", {}}, {"clocks", "", {}}}), "All is in order.\n");
  const auto text = verdict({{"build", "", {{"n3", "runs another build"}}},
                             {"clocks", "", {{"n3", "late"}, {"n1", "early"}}}});
  EXPECT_NE(text.find("--exclude=n1,n3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("build on n3: runs another build"), std::string::npos) << text;
  EXPECT_NE(text.find("clocks on n1: early"), std::string::npos) << text;
}

class PreflightTest : public testing::Test {
 protected:
  PreflightTest() : inputs_(test::small_inputs(folder_.path())) {
    inputs_.run.folder = (folder_.path() / "not" / "there").string();
  }
  test::TemporaryFolder folder_;
  Inputs inputs_;
};

TEST_F(PreflightTest, FindsThisMachineInOrderAndLeavesNothing) {
  const auto setup = make_setup(world(), inputs_);
  EXPECT_EQ(preflight(world(), setup, "llamesh 1\nMPI 2"), ExitCode::done);
  world().barrier();
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "not"));
}

TEST_F(PreflightTest, FindsAnotherBuild) {
  const auto setup = make_setup(world(), inputs_);
  const auto build = world().rank() == 1 ? "llamesh 2" : "llamesh 1";
  EXPECT_EQ(preflight(world(), setup, build),
            world().size() > 1 ? ExitCode::stopped_early : ExitCode::done);
}

TEST_F(PreflightTest, WantsRoomForTwoAndAHalfCheckpoints) {
  inputs_.model.vocab_size = 2000000000;  // terabytes, on paper
  const auto setup = make_setup(world(), inputs_);
  try {
    preflight(world(), setup, "llamesh 1");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
  }
}

}  // namespace
}  // namespace llamesh::train
