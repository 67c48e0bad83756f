#include "comm/mpi/launch.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "comm/mpi/time_limit.hpp"
#include "support.hpp"

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

/// Environment of a rank as its launcher sets it, and what the program makes of it.
struct KnownLauncher {
  const char* name;
  Variables variables;
  int ranks;            ///< of the launch, or at least
  int rank;             ///< of this process
  bool knows_ranks;     ///< false: each process gets its rank only
  const char* problem;  ///< in the message if MPI sees a world of one
};

// 4 ranks on 2 nodes; the environment of rank 3. Values that no launch is recognized by (paths,
// ports, names of jobs) are shortened.
const std::vector<KnownLauncher> known_launchers{
    // Open MPI's manual, "Environment variables set for MPI applications".
    {"mpirun of Open MPI 4",
     {{"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_NODE_RANK", "1"},
      {"OMPI_UNIVERSE_SIZE", "4"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "2863923201"}},
     4,
     3,
     true,
     "another MPI"},
    {"mpirun of Open MPI 5 (PRRTE) under PBS",
     {{"PBS_JOBID", "1.pbs"},
      {"PBS_NODEFILE", "/var/spool/pbs/aux/1.pbs"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "prterun-n1-77@1"},
      {"PMIX_SERVER_URI41", "prterun-n1-77@0.0;tcp4://127.0.0.1:41"}},
     4,
     3,
     true,
     "another MPI"},
    {"prterun, without Open MPI's personality",
     {{"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "prterun-n1-77@1"},
      {"PMIX_SERVER_URI41", "prterun-n1-77@0.0;tcp4://127.0.0.1:41"}},
     4,
     3,
     false,
     "PMIX_RANK is 3 but MPI sees 1 rank"},
    // PMI-1 (MPICH's simple PMI): MPICH's mpiexec under PBS.
    {"mpiexec of MPICH (Hydra) under PBS",
     {{"PBS_JOBID", "1.pbs"},
      {"PMI_SIZE", "4"},
      {"PMI_RANK", "3"},
      {"PMI_FD", "9"},
      {"MPI_LOCALNRANKS", "2"},
      {"MPI_LOCALRANKID", "1"}},
     4,
     3,
     true,
     "PMI_SIZE is 4 but MPI sees 1 rank"},
    {"mpiexec of Intel MPI (Hydra) in a Slurm job",  // its proxies are the step's tasks
     {{"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_PROCID", "1"},
      {"PMI_SIZE", "4"},
      {"PMI_RANK", "3"},
      {"PMI_FD", "9"},
      {"MPI_LOCALRANKID", "1"},
      {"I_MPI_HYDRA_BOOTSTRAP", "slurm"}},
     4,
     3,
     true,
     "PMI_SIZE is 4 but MPI sees 1 rank"},
    // pals.h of HPE's Parallel Application Launch Service: mpiexec under PBS on Cray EX.
    {"mpiexec of PALS under PBS",
     {{"PBS_JOBID", "1.pbs"},
      {"PALS_APID", "8b2f"},
      {"PALS_APINFO", "/var/run/palsd/8b2f/apinfo"},
      {"PALS_RANKID", "3"},
      {"PALS_NODEID", "1"},
      {"PALS_DEPTH", "1"},
      {"PALS_LOCAL_RANKID", "1"},
      {"PALS_LOCAL_SIZE", "2"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"},
      {"PMI_LOCAL_RANK", "1"},
      {"PMI_LOCAL_SIZE", "2"},
      {"PMI_CONTROL_PORT", "20001,20002"}},
     4,
     3,
     true,
     "PMI_SIZE is 4 but MPI sees 1 rank"},
    {"PALS without PMI's variables",
     {{"PALS_APID", "8b2f"}, {"PALS_RANKID", "3"}, {"PALS_NODEID", "1"}},
     4,
     3,
     false,
     "PALS_RANKID is 3 but MPI sees 1 rank"},
    // Slurm's src/plugins/mpi/cray_shasta/mpi_cray_shasta.c; the first versions set PALS_* only.
    {"srun --mpi=cray_shasta",
     {{"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_PROCID", "3"},
      {"SLURM_STEP_RESV_PORTS", "20001-20002"},
      {"PALS_APID", "7.0"},
      {"PALS_APINFO", "/var/spool/slurmd/mpi_cray_shasta/7.0/apinfo"},
      {"PALS_LOCAL_RANKID", "1"},
      {"PALS_NODEID", "1"},
      {"PALS_RANKID", "3"},
      {"PALS_SPOOL_DIR", "/var/spool/slurmd/mpi_cray_shasta/7.0"},
      {"PMI_CONTROL_PORT", "20001"}},
     4,
     3,
     true,
     "srun --mpi="},
    {"srun --mpi=cray_shasta since Slurm 22.05",
     {{"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_PROCID", "3"},
      {"PALS_APID", "7.0"},
      {"PALS_RANKID", "3"},
      {"PMI_JOBID", "7"},
      {"PMI_LOCAL_RANK", "1"},
      {"PMI_LOCAL_SIZE", "2"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"},
      {"PMI_UNIVERSE_SIZE", "4"},
      {"PMI_SHARED_SECRET", "12"}},
     4,
     3,
     true,
     "srun --mpi="},
    // Slurm's MPI guide.
    {"srun --mpi=pmix",
     {{"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_PROCID", "3"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "slurm.pmix.7.0"}},
     4,
     3,
     true,
     "srun --mpi="},
    {"srun --mpi=pmi2",
     {{"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_PROCID", "3"},
      {"PMI_FD", "17"},
      {"PMI_JOBID", "7.0"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"}},
     4,
     3,
     true,
     "srun --mpi="},
    // flux-environment(7); its shell's simple PMI serves MPICH, flux-pmix Open MPI, cray-pals
    // (flux-coral2) Cray MPICH.
    {"flux run -o pmi=simple",
     {{"FLUX_JOB_ID", "f2"},
      {"FLUX_JOB_SIZE", "4"},
      {"FLUX_JOB_NNODES", "2"},
      {"FLUX_TASK_RANK", "3"},
      {"FLUX_TASK_LOCAL_ID", "1"},
      {"PMI_FD", "9"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"}},
     4,
     3,
     true,
     "flux run -o pmi="},
    {"flux run -o pmi=pmix in a Slurm job",  // srun started Flux's brokers, one a node
     {{"SLURM_NTASKS", "2"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_PROCID", "1"},
      {"FLUX_JOB_SIZE", "4"},
      {"FLUX_TASK_RANK", "3"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "flux.1"}},
     4,
     3,
     true,
     "flux run -o pmi="},
    {"flux run -o pmi=cray-pals",
     {{"FLUX_JOB_SIZE", "4"},
      {"FLUX_TASK_RANK", "3"},
      {"PALS_NODEID", "1"},
      {"PALS_RANKID", "3"},
      {"PALS_APID", "31"},
      {"PMI_CONTROL_PORT", "11998,11999"},
      {"PMI_SHARED_SECRET", "12"}},
     4,
     3,
     true,
     "flux run -o pmi="},
    // IBM Spectrum LSF's Job Step Manager, with Spectrum MPI and alone.
    {"jsrun with Spectrum MPI",
     {{"LSB_JOBID", "7"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"JSM_NAMESPACE_SIZE", "4"},
      {"JSM_NAMESPACE_RANK", "3"},
      {"JSM_NAMESPACE_LOCAL_RANK", "1"},
      {"PMIX_RANK", "3"}},
     4,
     3,
     true,
     "another MPI"},
    {"jsrun",
     {{"LSB_JOBID", "7"}, {"JSM_NAMESPACE_SIZE", "4"}, {"JSM_NAMESPACE_RANK", "3"}},
     4,
     3,
     true,
     "JSM_NAMESPACE_SIZE is 4 but MPI sees 1 rank"},
};

TEST(Launch, KnowsEachLauncherAndRefusesWorldsOfOne) {
  for (const auto& known : known_launchers) {
    SCOPED_TRACE(known.name);
    const auto found = launch(known.variables);
    EXPECT_EQ(found.ranks, known.ranks);
    EXPECT_EQ(found.rank, known.rank);
    EXPECT_EQ(found.at_least, !known.knows_ranks);
    EXPECT_TRUE(found.wired) << "not refused before MPI_Init";
    EXPECT_EQ(problem(known.variables, 4), "");
    EXPECT_NE(problem(known.variables, 1).find(known.problem), std::string::npos)
        << problem(known.variables, 1);
    EXPECT_EQ(problem(known.variables, 2), "") << "an inner launcher's";
    EXPECT_EQ(problem(known.variables, 8), "") << "an inner launcher's";
  }
}

TEST(Launch, WithoutANumberOfRanksOnlyRankZeroMayBeAlone) {
  const auto rank = [](const char* of) {
    return launch({{"PALS_APID", "7"}, {"PALS_RANKID", of}});
  };
  EXPECT_EQ(launch_problem(rank("0"), 1), "") << "it may be the only one";
  EXPECT_NE(launch_problem(rank("1"), 1), "");
}

// The rank of a process that a shell started may be a variable left over.
TEST(Launch, AWorldOfOneIsReportedOnceUnderSlurmAndByEachProcessElsewhere) {
  const auto in_step = [](const char* rank) {
    return launch({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", rank}});
  };
  EXPECT_TRUE(in_step("0").reports_world_of_one());
  EXPECT_FALSE(in_step("3").reports_world_of_one());
  EXPECT_TRUE(launch({{"PMI_SIZE", "8"}, {"PMI_RANK", "3"}}).reports_world_of_one());
  EXPECT_TRUE(launch({{"PALS_APID", "7"}, {"PALS_RANKID", "5"}}).reports_world_of_one());
}

TEST(Launch, ALauncherInsideAnAllocationMayHaveAnyNumberOfRanks) {
  EXPECT_EQ(problem({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}}, 2), "");
  // srun --pty bash
  EXPECT_EQ(problem({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}, 2), "");
  EXPECT_EQ(problem({{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}, 1), "");
}

TEST(Launch, AFluxBatchScriptStartsOneProcess) {
  // The broker unsets FLUX_JOB_SIZE; what started it may have left its task's rank.
  EXPECT_EQ(problem({{"FLUX_URI", "local:///tmp/flux"}, {"FLUX_TASK_RANK", "0"}}, 1), "");
}

TEST(SrunPlugin, IsTheOneThatTheMpiSpeaks) {
  const std::string slurm_22 =
      "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n"
      "specific pmix plugin versions available: pmix_v4\n";
  const std::string slurm_20 = "srun: MPI types are...\nsrun: pmi2\nsrun: none\n";
  const std::string cray = "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n";
  const std::string only_pmix = "MPI plugin types are...\n\tnone\n\tpmix\n";
  const std::string open_mpi = "Open MPI v4.1.4 (MPI 3.1)",
                    mpich = "MPICH Version: 4.0.2 (MPI 4.0)";
  const std::string cray_mpich = "MPI VERSION    : CRAY MPICH version 8.1.28 (MPI 3.1)";
  EXPECT_EQ(srun_plugin(open_mpi, slurm_22), "pmix");
  EXPECT_EQ(srun_plugin(open_mpi, slurm_20), "");
  EXPECT_EQ(srun_plugin(mpich, slurm_22), "pmi2");
  EXPECT_EQ(srun_plugin(mpich, slurm_20), "pmi2");
  EXPECT_EQ(srun_plugin(mpich, only_pmix), "pmix");
  EXPECT_EQ(srun_plugin("Intel(R) MPI Library 2021.12 for Linux* OS (MPI 3.1)", cray), "pmi2");
  EXPECT_EQ(srun_plugin(cray_mpich, cray), "cray_shasta");
  EXPECT_EQ(srun_plugin(cray_mpich, slurm_22), "");
  for (const char* no_list : {"", "srun: error: no configuration\n"}) {
    EXPECT_EQ(srun_plugin(open_mpi, no_list), "pmix");
    EXPECT_EQ(srun_plugin(cray_mpich, no_list), "cray_shasta");
  }
}

TEST(SrunPlugin, IsInTheMessage) {
  const auto srun = launch({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_NE(launch_problem(srun, 1, "pmi2").find("start them with srun --mpi=pmi2 "),
            std::string::npos);
  EXPECT_NE(launch_problem(srun, 1, "").find("srun --mpi=list has no plugin"), std::string::npos);
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

TEST(SilenceLimit, IsHalfAMinuteOrWhatTheEnvironmentSays) {
  const auto limit = [](const char* text) {
    return silence_limit([&](const char*) { return text; }).count();
  };
  EXPECT_EQ(limit(nullptr), 30);
  EXPECT_EQ(limit("3"), 3);
  EXPECT_EQ(limit("600"), 600);
  for (const char* text : {"", "30s", "2", "0", "-5", "3.5", "99999999999"})
    EXPECT_EQ(test::error_of([&] { limit(text); }),
              fmt::format("LLAMESH_SILENCE is '{}'; give whole seconds, 3 at least", text));
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
  EXPECT_EQ(problem({{"SLURM_NTASKS", "8"}}, 1),
            "SLURM_NTASKS is 8 but MPI sees 1 rank: no launcher started this process; start the "
            "ranks with srun --mpi=pmix or mpirun, or this one alone with mpirun -n 1");
  EXPECT_EQ(problem({{"SLURM_NTASKS", "1"}}, 1), "");
  EXPECT_EQ(problem({{"SLURM_NTASKS", "many"}}, 1), "");
}

}  // namespace
}  // namespace llamesh::comm
