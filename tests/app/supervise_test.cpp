#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "app/supervise/bad_nodes.hpp"
#include "app/supervise/launch_end.hpp"
#include "core/file.hpp"
#include "temporary_folder.hpp"
#include "train/records/failure.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

using train::RunPhase;
using train::write_failure;
using train::write_run_state;
using Nodes = std::vector<std::string>;

class SuperviseTest : public testing::Test {
 protected:
  test::TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(SuperviseTest, PrefersNodesThatNeverFailed) {
  const Nodes nodes{"n1", "n2", "n3", "n4"};
  BadNodes bad(folder_);
  EXPECT_EQ(bad.choose(nodes, 3), (Nodes{"n1", "n2", "n3"}));
  bad.blame("n2", "silent");
  EXPECT_EQ(bad.choose(nodes, 3), (Nodes{"n1", "n3", "n4"}));
  EXPECT_EQ(bad.choose(nodes, 4), nodes) << "once: still used if too few are left";
  bad.blame("n2.cluster.example", "silent again");
  EXPECT_TRUE(bad.is_out("n2"));
  EXPECT_EQ(bad.choose(nodes, 4), (Nodes{"n1", "n3", "n4"})) << "twice: out";
  EXPECT_TRUE(bad.choose({}, 2).empty());
}

TEST_F(SuperviseTest, ReadsBackFailures) {
  {
    BadNodes bad(folder_);
    bad.blame("n2", "rank 2 on n2 is \"silent\"");
    bad.blame("n3", "no program can be launched on it");
  }
  const BadNodes bad(folder_);
  ASSERT_EQ(bad.failures().size(), 2U);
  EXPECT_EQ(bad.failures().front().host, "n2");
  EXPECT_EQ(bad.failures().front().reason, "rank 2 on n2 is \"silent\"");
  EXPECT_FALSE(bad.failures().front().time.empty());
  EXPECT_TRUE(bad.has_failed("n3"));
}

TEST_F(SuperviseTest, IgnoresAFileThatIsNoList) {
  for (const char* text : {"", "{", "[]", "{\"failures\": 3}", "{\"failures\": [{\"host\": 1}]}"}) {
    std::ofstream(folder_ / "bad_nodes.json") << text;
    EXPECT_TRUE(BadNodes(folder_).failures().empty()) << text;
  }
}

TEST(SameHostTest, ComparesNamesWithAndWithoutDomain) {
  EXPECT_TRUE(is_same_host("n1", "n1.a"));
  EXPECT_TRUE(is_same_host("n1.a", "n1"));
  EXPECT_TRUE(is_same_host("n1.a", "n1.a"));
  EXPECT_FALSE(is_same_host("n1.a", "n1.b"));
  EXPECT_FALSE(is_same_host("n1", "n10"));
}

TEST_F(SuperviseTest, KnowsALaunchThatHasNotStarted) {
  write_run_state(folder_, {.phase = RunPhase::stopped, .starts = 3});
  const LaunchRecord record(folder_);
  EXPECT_FALSE(record.has_ended()) << "that was the one before";
  EXPECT_EQ(record.end(1), (LaunchEnd{.kind = LaunchEnd::Kind::not_started, .code = 1}));
}

TEST_F(SuperviseTest, KnowsARunThatWasAskedToStop) {
  const LaunchRecord record(folder_);
  write_run_state(folder_, {.phase = RunPhase::running});
  EXPECT_FALSE(record.has_ended());
  write_run_state(folder_, {.phase = RunPhase::stopped,
                            .exit_code = ExitCode::stopped_early,
                            .reason = "the end of the walltime"});
  // The start has found out how the one before it ended.
  write_failure(folder_,
                {.kind = "killed", .rank = 2, .host = "n2", .detail = "rank 2 was killed"});
  EXPECT_TRUE(record.has_ended());
  EXPECT_EQ(record.end(143), (LaunchEnd{.kind = LaunchEnd::Kind::asked, .code = 75}));
  const auto earlier = record.earlier_failure();
  ASSERT_TRUE(earlier);
  EXPECT_EQ(earlier->hosts, Nodes{"n2"});
  EXPECT_FALSE(LaunchRecord(folder_).earlier_failure()) << "known by then";
}

TEST_F(SuperviseTest, TakesFaultyHostsFromTheDiagnosis) {
  const LaunchRecord record(folder_);
  write_run_state(folder_, {.phase = RunPhase::stopped,
                            .step = 20,
                            .exit_code = ExitCode::stopped_early,
                            .reason = "rank 1 on n1 and rank 2 on n2 cannot reach each other",
                            .faulty_ranks = {1, 2},
                            .faulty_hosts = {"n1", "n2"}});
  write_failure(folder_, {.kind = "link",
                          .rank = 1,
                          .host = "n1",
                          .step = 27,
                          .detail = "rank 1 on n1 and rank 2 on n2 cannot reach each other"});
  const auto end = record.end(137);
  EXPECT_EQ(end.kind, LaunchEnd::Kind::failed);
  EXPECT_EQ(end.code, 75);
  EXPECT_EQ(end.step, 27);
  EXPECT_EQ(end.hosts, (Nodes{"n1", "n2"}));
}

TEST_F(SuperviseTest, BlamesAnErrorsHostOnlyIfItIsAtFault) {
  struct Case {
    ExitCode code;
    std::string error;
    Nodes blamed;
  };
  const std::string differs = "rank 3 on n2 differs in weights or moments from ranks 0, 1";
  const std::string computed = "in step 5, rank 3 on n2 computed different bits for the same ";
  const std::array<Case, 6> cases{
      {{ExitCode::stopped_early, differs, {"n2"}},
       {ExitCode::stopped_early, computed + "micro-batch, first in the loss", {"n2"}},
       {ExitCode::stopped_early, "one of rank 3 on n2, rank 4 on n3, is at fault", {}},
       {ExitCode::stopped_early,
        "a kernel failed on the GPU by a fault of it or of its node: ECC",
        {"n2"}},
       {ExitCode::stopped_early, "all_gather on axis shard (another rank is gone) failed", {}},
       {ExitCode::io_failure, differs, {}}}};
  int starts = 0;
  for (const auto& [code, error, blamed] : cases) {
    const LaunchRecord record(folder_);
    write_run_state(
        folder_,
        {.phase = RunPhase::stopped, .starts = ++starts, .exit_code = code, .reason = error});
    write_failure(folder_, {.kind = "error", .rank = 3, .host = "n2", .step = 5, .detail = error});
    EXPECT_EQ(record.end(1).hosts, blamed) << error;
  }
}

TEST_F(SuperviseTest, BlamesNobodyForRanksThatWereKilled) {
  const LaunchRecord record(folder_);
  write_run_state(folder_, {.phase = RunPhase::running, .step = 20});
  std::ofstream(folder_ / "metrics.jsonl") << R"({"step":23,"loss":1})"
                                           << "\n";
  const auto end = record.end(137);
  EXPECT_EQ(end.kind, LaunchEnd::Kind::failed);
  EXPECT_EQ(end.code, 137);
  EXPECT_EQ(end.step, 23);
  EXPECT_TRUE(end.hosts.empty());
  EXPECT_EQ(record.end(0).code, 75) << "srun may return 0";
}

}  // namespace
}  // namespace llamesh::app
