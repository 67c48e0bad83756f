#include "train/preflight/preflight.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "comm/mpi/session.hpp"
#include "core/process.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"
#include "train/job/shared_folder.hpp"

namespace llamesh::train {
namespace {

using namespace std::chrono_literals;
using test::world;

TEST(OddOnesOut, AreThoseThatDifferFromMost) {
  EXPECT_EQ(outliers({"a", "a", "a"}), std::vector<int>{});
  EXPECT_EQ(outliers({"b", "a", "a", "c"}), (std::vector<int>{0, 3}));
  EXPECT_EQ(outliers({"a", "b"}), std::vector<int>{1});  // on a tie rank 0's counts
}

TEST(Diagnosis, NamesEachBadHostOnceAndHowToLeaveItOut) {
  EXPECT_EQ(summary({{"build", "", {}}, {"clocks", "", {}}}), "All checks passed.\n");
  const auto text = summary({{"build", "", {{"n3", "runs another build"}}},
                             {"clocks", "", {{"n3", "late"}, {"n1", "early"}}}});
  EXPECT_NE(text.find("--exclude=n1,n3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("build on n3: runs another build"), std::string::npos) << text;
  EXPECT_NE(text.find("clocks on n1: early"), std::string::npos) << text;
}

TEST(Diagnosis, WarnsOfWhatNoHostIsToBlameFor) {
  Finding finding{"links", "", {}, {"link n1 <-> n2 is slow"}};
  EXPECT_EQ(summary({finding}), "warning: links: link n1 <-> n2 is slow\nAll checks passed.\n");
  finding.bad = {{"n3", "slow"}};
  const auto text = summary({finding});
  EXPECT_TRUE(text.starts_with("warning: links: ")) << text;
  EXPECT_NE(text.find("--exclude=n3\n"), std::string::npos) << text;
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

// slow_nodes_test.cpp and the cluster's tests check which node is slow.
TEST_F(PreflightTest, MeasuresTheNodesOfAStartByTheSupervisor) {
  const auto setup = make_setup(world(), inputs_);
  EXPECT_TRUE(check_health(world(), setup).empty()) << "not asked for";
  setenv("LLAMESH_SPARE_NODES", "2", 1);
  EXPECT_TRUE(check_health(world(), setup).empty()) << "one host";
  unsetenv("LLAMESH_SPARE_NODES");
  EXPECT_FALSE(std::filesystem::exists(inputs_.run.folder));
}

TEST_F(PreflightTest, WantsRoomForTwoAndAHalfCheckpoints) {
  if (test::sanitized) GTEST_SKIP() << "ThreadSanitizer leaves too few addresses to plan it with";
  inputs_.model.vocab_size = 2000000000;  // terabytes, on paper
  const auto setup = make_setup(world(), inputs_);
  try {
    preflight(world(), setup, "llamesh 1");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
  }
}

/// A fixture in which each rank is a node.
class SharedFolderTest : public testing::Test {
 protected:
  /// Returns, on every rank, the error that `check` throws on the reporting rank.
  static std::string reported(const std::function<void()>& check) {
    std::string text;
    try {
      check();
    } catch (const comm::PeerFailure& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      text = error.what();
    }
    std::string all;
    for (const auto& one : world().all_gather(text)) all += one;
    return all;
  }
  static bool is_empty(const std::filesystem::path& folder) {
    world().barrier();
    const bool empty = std::filesystem::is_empty(folder);
    world().barrier();
    return empty;
  }
};

TEST_F(SharedFolderTest, IsFoundToBeOneAndLeftAsItWas) {
  const test::SharedFolder shared;
  EXPECT_EQ(reported([&] { check_shared_folder(world(), true, shared.path()); }), "");
  EXPECT_TRUE(is_empty(shared.path()));
}

TEST_F(SharedFolderTest, OfEachNodeItsOwnIsRefused) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const test::TemporaryFolder own;
  const bool last = world().rank() == world().size() - 1;
  const test::SharedFolder shared;
  const auto& folder = last ? own.path() : shared.path();
  const auto text = reported([&] { check_shared_folder(world(), true, folder, 200ms); });
  const auto host = this_process().host;
  EXPECT_NE(text.find(fmt::format("on {} is not the one on {}", host, host)), std::string::npos)
      << text;
  EXPECT_NE(text.find("name one on a file system that all of them mount"), std::string::npos);
  EXPECT_TRUE(is_empty(folder));
  // A rank that does not represent its node is not checked.
  EXPECT_EQ(reported([&] { check_shared_folder(world(), !last, folder); }), "");
}

TEST_F(SharedFolderTest, IsAskedForBeforeARunLeavesAnything) {
  if (world().size() != 3) GTEST_SKIP() << "takes 10 s: once is enough";
  const test::TemporaryFolder own;
  const test::SharedFolder shared;
  auto in = test::inputs_in(shared.path());
  in.mesh.ranks_per_node = 1;
  in.run.folder = (own.path() / "deep" / "run").string();
  if (world().rank() != 0) std::filesystem::create_directories(in.run.folder);
  const auto setup = make_setup(world(), in);
  const auto text = reported([&] {
    auto watchdog = watch_over(world());
    run(world(), setup, "run: {}\n", {}, watchdog);
  });
  EXPECT_NE(text.find("run.folder: " + in.run.folder.substr(0, 4)), std::string::npos) << text;
  EXPECT_EQ(std::filesystem::exists(own.path() / "deep"), world().rank() != 0);
}

}  // namespace
}  // namespace llamesh::train
