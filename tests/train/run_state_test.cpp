#include "train/records/run_state.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.hpp"

namespace llamesh::train {
namespace {

class RunStateTest : public testing::Test {
 protected:
  test::TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(RunStateTest, ReadsBackWhatItWrote) {
  EXPECT_FALSE(read_run_state(folder_));
  const RunState state{.phase = RunPhase::stopped,
                       .step = 120,
                       .first_step = 100,
                       .starts_here = 2,
                       .starts = 5,
                       .steps = 400,
                       .seconds_needed = 91.5,
                       .joules = 1234567.25,
                       .exit_code = ExitCode::stopped_early,
                       .reason = "SIGTERM, \"twice\"",
                       .doing = "training step 121",
                       .faulty_ranks = {1, 3},
                       .faulty_hosts = {"node2", "node4"}};
  write_run_state(folder_, state);
  const auto read = read_run_state(folder_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->phase, state.phase);
  EXPECT_EQ(read->step, state.step);
  EXPECT_EQ(read->first_step, state.first_step);
  EXPECT_EQ(read->starts_here, state.starts_here);
  EXPECT_EQ(read->starts, state.starts);
  EXPECT_EQ(read->steps, state.steps);
  EXPECT_EQ(read->seconds_needed, state.seconds_needed);
  EXPECT_EQ(read->joules, state.joules);
  EXPECT_EQ(start_after(state, 120, false).joules, state.joules) << "of all launches";
  EXPECT_EQ(parse_run_state(to_text(RunState()))->joules, std::nullopt);
  EXPECT_EQ(read->exit_code, state.exit_code);
  EXPECT_EQ(read->reason, state.reason);
  EXPECT_EQ(read->doing, state.doing);
  EXPECT_EQ(read->faulty_ranks, state.faulty_ranks);
  EXPECT_EQ(read->faulty_hosts, state.faulty_hosts);
}

TEST_F(RunStateTest, IgnoresJoulesThatAreNoEnergy) {
  const RunState state{.step = 120, .joules = 5.0};
  for (const char* joules : {"null", "\"many\"", "-1.5", "[]", "true"}) {
    auto text = to_text(state);
    const auto at = text.find("5.0", text.find("\"joules\""));
    ASSERT_NE(at, std::string::npos) << text;
    const auto read = parse_run_state(text.replace(at, 3, joules));
    ASSERT_TRUE(read) << joules;
    EXPECT_EQ(read->step, 120);
    EXPECT_EQ(read->joules, std::nullopt) << joules;
  }
}

TEST_F(RunStateTest, SaysToScriptsWhatTheyAskFor) {
  setenv("SLURM_JOB_ID", "4711", 1);
  setenv("SLURM_RESTART_COUNT", "3", 1);
  write_run_state(folder_, {.phase = RunPhase::stopped,
                            .step = 7,
                            .exit_code = ExitCode::stopped_early,
                            .reason = "SIGUSR2"});
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_RESTART_COUNT");
  std::ifstream in(state_file(folder_));
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["state"], "stopped");
  EXPECT_EQ(json["exit_code"], 75);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["job"], "4711");
  EXPECT_EQ(json["restarts"], "3");
}

// The next job in a chain continues only if the state is "stopped".
TEST_F(RunStateTest, SaysOfAFailureWhetherToStartAgain) {
  record_failure(folder_, ExitCode::stopped_early, "rank 2 on node1 is lost");
  EXPECT_EQ(read_run_state(folder_)->phase, RunPhase::stopped);
  record_failure(folder_, ExitCode::io_failure, "the disk is full");
  EXPECT_EQ(read_run_state(folder_)->phase, RunPhase::failed);
}

TEST_F(RunStateTest, ARefusedStartLeavesADoneRunDone) {
  write_run_state(folder_, {.phase = RunPhase::done, .step = 20, .steps = 20});
  record_failure(folder_, ExitCode::bad_input, "the training data have changed");
  EXPECT_EQ(read_run_state(folder_)->phase, RunPhase::done);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "failure.json"));
  write_run_state(folder_, {.step = 20, .steps = 40});  // it trains
  record_failure(folder_, ExitCode::bad_input, "data file 'a.txt' was truncated");
  EXPECT_EQ(read_run_state(folder_)->phase, RunPhase::failed);
}

TEST_F(RunStateTest, TakesAnythingElseAsNoState) {
  for (const char* text : {"", "{", "[]", "{}", R"({"state": "asleep"})", R"({"state": 3})",
                           R"({"state": "done", "step": "x"})"}) {
    std::ofstream(state_file(folder_)) << text;
    EXPECT_FALSE(read_run_state(folder_)) << text;
  }
}

TEST_F(RunStateTest, TakesNumbersOutOfRangeAsNoState) {
  const auto text = to_text(RunState{});
  ASSERT_TRUE(parse_run_state(text));
  const auto with = [&](const std::string& key, const std::string& value) {
    auto changed = text;
    const auto at = changed.find("\"" + key + "\": ") + key.size() + 4;
    return changed.replace(at, changed.find(',', at) - at, value);
  };
  EXPECT_TRUE(parse_run_state(with("step", "4")));
  for (const char* key : {"step", "first_step", "starts_here", "starts", "steps", "exit_code"})
    for (const char* value : {"-1", "9223372036854775807", "1e300", "1.5", "true"})
      EXPECT_FALSE(parse_run_state(with(key, value))) << key << ' ' << value;
}

TEST_F(RunStateTest, NamesAFileWhoseNameIsNotUtf8) {
  record_failure(folder_, ExitCode::bad_input, "'data/\xff.bin' is empty");
  const auto state = read_run_state(folder_);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->reason, "'data/\ufffd.bin' is empty");
  EXPECT_EQ(state->exit_code, ExitCode::bad_input);
}

TEST_F(RunStateTest, KeepsTheFirstDiagnosis) {
  write_run_state(folder_, {.step = 7});
  const comm::Diagnosis first{"1 and 3", {1, 3}, {"node2", "node4"}, "training step 8"};
  EXPECT_TRUE(record_failure(folder_, ExitCode::stopped_early, first));
  const comm::Diagnosis second{"2", {2}, {"node3"}, ""};
  EXPECT_FALSE(record_failure(folder_, ExitCode::stopped_early, second));
  const auto state = read_run_state(folder_);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->phase, RunPhase::stopped);
  EXPECT_EQ(state->step, 7);
  EXPECT_EQ(state->exit_code, ExitCode::stopped_early);
  EXPECT_EQ(state->reason, first.line);
  EXPECT_EQ(state->doing, first.doing);
  EXPECT_EQ(state->faulty_ranks, first.ranks);
  EXPECT_EQ(state->faulty_hosts, first.hosts);
}

TEST_F(RunStateTest, CannotBeWrittenWhereThereIsNoFolder) {
  try {
    write_run_state(folder_ / "absent", {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
  }
}

TEST(StartAfter, RefusesTheThirdStartAtTheSameStep) {
  auto state = start_after({}, 40, true);
  EXPECT_EQ(state.starts_here, 1);
  state = start_after(state, 40, true);
  EXPECT_EQ(state.starts_here, 2);
  try {
    start_after(state, 40, true);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::no_progress);
    EXPECT_NE(std::string(error.what()).find("step 40"), std::string::npos) << error.what();
  }
  EXPECT_EQ(start_after(state, 42, true).starts_here, 1);  // it made progress
  EXPECT_EQ(start_after(state, 42, true).starts, state.starts + 1);
  EXPECT_EQ(start_after(state, 40, false).starts_here, 3);  // a user at a terminal may
  state.phase = RunPhase::done;
  EXPECT_EQ(start_after(state, 40, true).starts_here, 1);  // training further is a new beginning
}

// Each job has time for one step: every launch begins elsewhere, and gains next to nothing.
TEST(StartAfter, RefusesToGoOnByOneStepAJob) {
  auto state = start_after({}, 40, true);
  state.phase = RunPhase::stopped;
  state.reason = "the end of the walltime";
  state.seconds_needed = 500;
  state = start_after(state, 41, true);
  EXPECT_EQ(state.starts_here, 2);
  EXPECT_EQ(state.seconds_needed, 500);  // for the warning
  EXPECT_EQ(start_after(state, 43, true).starts_here, 1);
  state.reason = "the end of the walltime";
  try {
    start_after(state, 42, true);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::no_progress);
    const std::string text = error.what();
    EXPECT_NE(text.find("from step 41 to 42"), std::string::npos) << text;
    EXPECT_NE(text.find("the end of the walltime"), std::string::npos) << text;
  }
  EXPECT_EQ(start_after(state, 0, true).starts_here, 1);  // somebody started over
}

/// End of a launch that gained nothing, and the hosts of the next one.
struct FruitlessLaunch {
  int rank;  // to blame; -1: nobody
  const char* host;
  const char* doing;
  std::vector<std::string> next_hosts;
};

/// Returns whether the start after these is refused.
bool is_refused_after(const std::vector<FruitlessLaunch>& starts) {
  auto state = start_after({}, 40, true, {"n1", "n2"});
  for (const auto& [rank, host, doing, next_hosts] : starts) {
    state.phase = RunPhase::stopped;
    if (rank >= 0) {
      state.faulty_ranks = {rank};
      state.faulty_hosts = {host};
      state.doing = doing;
    }
    const auto read = parse_run_state(to_text(state));
    EXPECT_TRUE(read);
    try {
      state = start_after(read, 40, true, next_hosts);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::no_progress);
      EXPECT_EQ(&starts.back().next_hosts, &next_hosts) << "refused too early";
      return true;
    }
  }
  return false;
}

TEST(StartAfter, DoesNotCountFaultsOfNodesThatAreLeftOut) {
  const char* const step_47 = "training step 47";
  const char* const step_44 = "training step 44";
  struct Case {
    const char* name;
    std::vector<FruitlessLaunch> starts;
    bool refused;
  };
  const std::vector<Case> cases{
      {"other nodes each time",
       {{1, "n2", step_47, {"n1", "n3"}},
        {1, "n3", step_44, {"n1", "n4"}},
        {0, "n1", step_47, {"n4", "n5"}}},
       false},
      {"the same fault on another node",
       {{1, "n2", step_47, {"n1", "n3"}}, {1, "n3", step_47, {"n1", "n4"}}},
       true},
      {"the same step, another rank",
       {{1, "n2", step_47, {"n1", "n3"}}, {0, "n1", step_47, {"n3", "n4"}}},
       false},
      {"the node is used again",
       {{1, "n2", step_47, {"n1", "n2"}}, {1, "n2", step_44, {"n1", "n2"}}},
       true},
      {"nobody is to blame", {{-1, "", "", {"n1", "n3"}}, {-1, "", "", {"n1", "n4"}}}, true},
      {"a node's fault between faults of nobody",
       {{-1, "", "", {"n1", "n2"}}, {1, "n2", step_47, {"n1", "n3"}}},
       false},
      {"faults of nobody around a node's",
       {{-1, "", "", {"n1", "n2"}}, {1, "n2", step_47, {"n1", "n3"}}, {-1, "", "", {"n1", "n3"}}},
       true},
  };
  for (const auto& [name, starts, refused] : cases)
    EXPECT_EQ(is_refused_after(starts), refused) << name;
}

TEST(StartAfter, RefusesTheEleventhStartOfAnyKind) {
  std::vector<FruitlessLaunch> starts;
  std::vector<std::string> doing;
  for (int i = 0; i < 10; ++i) doing.push_back(fmt::format("training step {}", 41 + i));
  for (int i = 0; i < 9; ++i)
    starts.push_back({1, "n2", doing[static_cast<std::size_t>(i)].c_str(), {"n1"}});
  EXPECT_FALSE(is_refused_after(starts));
  starts.push_back({1, "n2", doing.back().c_str(), {"n1"}});
  EXPECT_TRUE(is_refused_after(starts));
}

TEST(StartAfter, TakesALinkForLeftOutWithEitherHost) {
  RunState before{.phase = RunPhase::stopped, .faulty_ranks = {0, 1}, .faulty_hosts = {"n1", "n2"}};
  EXPECT_EQ(start_after(before, 0, true, {"n1", "n3"}).node_faults.size(), 1U);
  EXPECT_TRUE(start_after(before, 0, true, {"n1", "n2"}).node_faults.empty());
  EXPECT_TRUE(start_after(before, 0, true).node_faults.empty()) << "hosts unknown";
}

TEST_F(RunStateTest, NamesTheReporterIfTheFaultIsItsOwn) {
  struct Case {
    ExitCode code;
    const char* error;
    bool named;
  };
  for (const auto& [code, error, named] :
       {Case{ExitCode::stopped_early,
             "a kernel failed on the GPU by a fault of it or of its node: ECC", true},
        Case{ExitCode::stopped_early, "all_gather (another rank is gone) failed in NCCL", false},
        Case{ExitCode::io_failure,
             "a kernel failed on the GPU by a fault of it or of its node: ECC", false}}) {
    write_run_state(folder_, {.step = 7});
    record_failure(folder_, code, error);
    const auto state = read_run_state(folder_);
    ASSERT_TRUE(state);
    EXPECT_EQ(!state->faulty_hosts.empty(), named) << error;
    EXPECT_EQ(state->reason, error);
  }
}

}  // namespace
}  // namespace llamesh::train
