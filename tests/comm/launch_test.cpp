#include "comm/mesh/launch.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "comm/diagnosis/time_limit.hpp"
#include "error_of.hpp"

namespace llamesh::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string problem(const Variables& variables, int world_size) {
  return launch_problem(launch(variables), world_size);
}

TEST(Launch, AProgramStartedAloneIsAWorldOfOne) {
  EXPECT_EQ(problem({}, 1), "");
}

TEST(Launch, SrunWithPmixIsRightWhenTheSizesAgree) {
  const Variables srun{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}, {"PMIX_RANK", "1"}};
  EXPECT_EQ(problem(srun, 4), "");
  EXPECT_NE(problem(srun, 1).find("SLURM_STEP_NUM_TASKS is 4 but MPI sees 1 rank"),
            std::string::npos);
}

TEST(Launch, SrunWithoutPmiIsSeenBeforeMpiStarts) {
  const auto srun = launch({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}});
  EXPECT_FALSE(srun.wired);
  EXPECT_EQ(srun.rank, 3);
  EXPECT_NE(launch_problem(srun, 1).find("srun --mpi=pmix"), std::string::npos);
}

TEST(Launch, ARankByItselfIsNoPmi) {
  const Variables left_over{
      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"PMI_RANK", "3"}};
  EXPECT_FALSE(launch(left_over).wired);
  auto slurms_pmi2 = left_over;
  slurms_pmi2["PMI_FD"] = "17";
  EXPECT_TRUE(launch(slurms_pmi2).wired);
}

TEST(Launch, SrunWithPmi2OfAnMpiThatHasNone) {
  Variables pmi2{{"SLURM_STEP_NUM_TASKS", "4"},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_PROCID", "2"},
                 {"PMI_SIZE", "4"},
                 {"PMI_RANK", "2"},
                 {"PMI_FD", "17"}};
  EXPECT_EQ(problem(pmi2, 4), "");
  EXPECT_NE(problem(pmi2, 1).find("srun --mpi=pmix"), std::string::npos) << problem(pmi2, 1);
  EXPECT_EQ(launch(pmi2).rank, 2);
  EXPECT_TRUE(launch(pmi2).wired) << "another MPI may have it";
  // Hydra's mpiexec within a job: srun has started its proxies, one a node.
  pmi2["SLURM_STEP_NUM_TASKS"] = "2";
  pmi2["SLURM_PROCID"] = "1";
  EXPECT_EQ(launch(pmi2).variable, "PMI_SIZE");
  EXPECT_EQ(problem(pmi2, 4), "");
}

TEST(Launch, TorchrunStartsNoMpi) {
  const Variables torchrun{{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(launch(torchrun).rank, 3);
  EXPECT_NE(problem(torchrun, 1).find("WORLD_SIZE is 4 but MPI sees 1 rank: torchrun"),
            std::string::npos);
  EXPECT_EQ(problem(torchrun, 2), "") << "another launcher has started two ranks";
  EXPECT_NE(problem({{"WORLD_SIZE", "4"}, {"RANK", "0"}}, 1).find("WORLD_SIZE is 4"),
            std::string::npos);
  EXPECT_EQ(problem({{"WORLD_SIZE", "4"}}, 1), "") << "a script's own variable";
  Variables both = torchrun;
  both["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(problem(both, 2), "");
}

TEST(MpiTimeout, GrowsWithTheRanksOrIsWhatTheEnvironmentSays) {
  const auto timeout = [](const char* text, int ranks = 4) {
    return mpi_timeout([&](const char*) { return text; }, ranks).count();
  };
  EXPECT_EQ(timeout(nullptr, 0), 60);
  EXPECT_EQ(timeout(nullptr, 999), 60);
  EXPECT_EQ(timeout(nullptr, 4000), 300);
  EXPECT_EQ(timeout(nullptr, 131072), 600);
  EXPECT_EQ(timeout("1200"), 1200);
  EXPECT_EQ(timeout("0"), 0);
  for (const char* text : {"", "5m", "-1", "many"})
    EXPECT_NE(test::error_of([&] { timeout(text); }).find(fmt::format("'{}'", text)),
              std::string::npos);
}

TEST(Launch, MpirunInsideAnAllocationDecidesItself) {
  const Variables inside{
      {"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  EXPECT_EQ(problem(inside, 2), "");
  EXPECT_NE(problem(inside, 1).find("another MPI"), std::string::npos);
}

TEST(Launch, TellsOpenMpisMpirunFromOtherLaunchers) {
  EXPECT_TRUE(launch({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "8"}}).by_open_mpi());
  EXPECT_FALSE(launch({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "1"}}).by_open_mpi());
  EXPECT_FALSE(launch({{"PMI_SIZE", "4"}}).by_open_mpi());
  EXPECT_FALSE(launch({}).by_open_mpi());
}

TEST(Launch, AShellInAnAllocationHasToUseALauncher) {
  EXPECT_NE(problem({{"SLURM_NTASKS", "8"}}, 1), "");
  EXPECT_EQ(problem({{"SLURM_NTASKS", "1"}}, 1), "");
  EXPECT_EQ(problem({{"SLURM_NTASKS", "many"}}, 1), "");
}

}  // namespace
}  // namespace llamesh::comm
