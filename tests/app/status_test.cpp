#include "app/status/run_status.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "app/commands/commands.hpp"
#include "hostile_files.hpp"
#include "patience.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"
#include "train/records/failure.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using train::RunPhase;
using train::RunState;

std::string step_line(int step, double loss, double time) {
  return fmt::format(R"({{"step":{},"loss":{},"seconds":0.5,"tokens_per_second":{},"time":{}}})"
                     "\n",
                     step, loss, 1000 + step, time);
}

void make_older(const fs::path& path, int seconds) {
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::seconds(seconds));
}

class Status : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder_ / name).parent_path());
    temporary_.write(name, text);
  }
  void write_state(const RunState& state) { train::write_run_state(folder_, state); }
  void hold_lease() { write("checkpoints/.lease", "4711 node3 99\n"); }
  void write_checkpoint(int step, int age) {
    const auto name = fmt::format("checkpoints/step_{:08}/manifest.json", step);
    write(name, "{}");
    make_older(folder_ / name, age);
  }
  Json json() { return to_json(read_status(folder_)); }
  std::string phase() { return read_status(folder_).phase; }

  test::TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(Status, OfARunningRunHasAllKeys) {
  write_state({.step = 8, .starts = 3, .steps = 100, .joules = 9e6, .best = {{5, 3.5}}});
  hold_lease();
  write_checkpoint(5, 500);
  write_checkpoint(8, 90);
  std::string lines = R"({"event":"resume","step":5,"time":1000})"
                      "\n";
  for (int step = 6; step <= 10; ++step) lines += step_line(step, 30.0 / step, 1000 + 2 * step);
  lines += R"({"event":"memory_checkpoint","step":9,"detail":"0.1 s"})"
           "\n";
  write("metrics.jsonl", lines);
  auto now = json();
  EXPECT_GE(now["checkpoint"]["age_seconds"].get<double>(), 89);
  EXPECT_LT(now["checkpoint"]["age_seconds"].get<double>(), 500) << "of the older one";
  now["checkpoint"].erase("age_seconds");
  EXPECT_EQ(now.dump(),
            R"({"phase":"running","step":10,"steps":100,"loss":3.0,"tokens_per_second":1008.0,)"
            R"("eta_seconds":180.0,"checkpoint":{"step":8},"memory_checkpoint_step":9,)"
            R"("best":{"step":5,"loss":3.5},"restarts":2,)"
            R"("kilowatt_hours":2.5,"goodput":null,"failure":null})");
  const auto lines_shown = to_lines(read_status(folder_), "a");
  EXPECT_EQ(lines_shown.back(), "  energy      2.5 kWh");
}

TEST_F(Status, ShowsAMemoryCheckpointThatIsNewerThanTheOneOnDisk) {
  const std::string event = R"({"event":"memory_checkpoint","step":9})"
                            "\n";
  write_state({.phase = RunPhase::stopped, .step = 8});
  EXPECT_TRUE(json()["memory_checkpoint_step"].is_null());
  write("metrics.jsonl", event);
  write_checkpoint(8, 90);
  EXPECT_EQ(to_lines(read_status(folder_), "a").at(2), "  in memory   checkpoint of step 9");
  write_checkpoint(9, 10);
  EXPECT_TRUE(json()["memory_checkpoint_step"].is_null());
  write("metrics.jsonl", event + R"({"event":"memory_checkpoint","step":12})"
                                 "\n");
  EXPECT_EQ(json()["memory_checkpoint_step"], 12);
  write("metrics.jsonl", event + R"({"event":"resume","step":8})"
                                 "\n");
  EXPECT_TRUE(json()["memory_checkpoint_step"].is_null()) << "lost";
  write_state({.phase = RunPhase::done, .step = 8});
  write("metrics.jsonl", event);
  EXPECT_TRUE(json()["memory_checkpoint_step"].is_null()) << "the run has removed it";
}

TEST_F(Status, ShowsWhereTheTimeWent) {
  write_state({.goodput = {.productive = 75, .saving = 5, .waiting = 20}});
  EXPECT_EQ(json()["goodput"].dump(),
            R"({"productive":75.0,"repeated":0.0,"saving":5.0,"starting":0.0,"other":0.0,)"
            R"("waiting":20.0,"share":0.75})");
  EXPECT_EQ(to_lines(read_status(folder_), "a").back(),
            "  goodput     75 % of 0:01:40: saving 0:00:05, waiting 0:00:20");
}

TEST_F(Status, PhasesFollowStateAndLease) {
  EXPECT_EQ(phase(), "not_started");
  hold_lease();
  EXPECT_EQ(phase(), "starting");
  write_state({});
  EXPECT_EQ(phase(), "running");
  make_older(folder_ / "checkpoints/.lease", 100);  // nobody touches it
  EXPECT_EQ(phase(), "killed");
  write("checkpoints/.lease", "released\n");  // it ended by itself, and could not write its state
  EXPECT_EQ(phase(), "failed");
  EXPECT_NE(read_status(folder_).reason.find("could not write state.json"), std::string::npos);
  write_state({.phase = RunPhase::stopped});
  EXPECT_EQ(phase(), "stopped");
  write_state({.phase = RunPhase::done});
  EXPECT_EQ(phase(), "done");
  write_state({.phase = RunPhase::failed});
  EXPECT_EQ(phase(), "failed");
  hold_lease();  // as a job that was aborted leaves it
  EXPECT_EQ(phase(), "failed");
  make_older(train::state_file(folder_), 60);  // touched since then
  EXPECT_EQ(phase(), "starting");
}

TEST_F(Status, WithoutAnythingIsUnknown) {
  EXPECT_EQ(
      json().dump(),
      R"({"phase":"not_started","step":null,"steps":null,"loss":null,)"
      R"("tokens_per_second":null,"eta_seconds":null,"checkpoint":null,"memory_checkpoint_step":null,)"
      R"("best":null,"restarts":null,)"
      R"("kilowatt_hours":null,"goodput":null,"failure":null})");
  EXPECT_EQ(to_lines(read_status(folder_), "a"),
            std::vector<std::string>{"a: no run has started here"});
}

TEST_F(Status, OfAnEndedRunHasNoTimeLeft) {
  write_state({.phase = RunPhase::done, .step = 2, .steps = 2});
  write("metrics.jsonl", step_line(1, 5, 10) + step_line(2, 4, 11));
  EXPECT_TRUE(json()["eta_seconds"].is_null());
  EXPECT_EQ(json()["step"], 2);
}

TEST_F(Status, TakesTheTimeOfAStepFromThisStartOnly) {
  write_state({.steps = 12});
  hold_lease();
  write("metrics.jsonl", step_line(9, 5, 10) +
                             R"({"event":"resume","step":9,"time":90000})"
                             "\n" +
                             step_line(10, 4, 90010));
  EXPECT_EQ(json()["eta_seconds"], 1.0);  // two steps of 0.5 s, and not of 25 hours
}

TEST_F(Status, LeavesOutTornAndDamagedLines) {
  write_state({.step = 1, .steps = 9});
  write("metrics.jsonl", step_line(1, 5, 10) + std::string(40, '\0') + "\n{\"step\":\n[3]\n" +
                             step_line(2, 4, 11) + R"({"step":3,"loss":1)");
  EXPECT_EQ(json()["step"], 2);
  EXPECT_EQ(json()["loss"], 4.0);
  write("metrics.jsonl", R"({"step":1,"loss":NaN})");
  EXPECT_EQ(json()["step"], 1);  // of the checkpoint
}

TEST_F(Status, ReadsTheEndOfALongFile) {
  write_state({.steps = 100000});
  std::string lines;
  for (int step = 1; step <= 20000; ++step) lines += step_line(step, 5, step);
  write("metrics.jsonl", lines);
  EXPECT_EQ(json()["step"], 20000);
  EXPECT_EQ(json()["tokens_per_second"], 20991.0);    // the upper median of the last 20
  write("metrics.jsonl", std::string(1 << 20, 'x'));  // not a line of ours
  EXPECT_TRUE(json()["loss"].is_null());
}

TEST_F(Status, ADamagedStateIsUnknown) {
  write("state.json", "{\"state\": \"runn");
  EXPECT_EQ(phase(), "unknown");
  EXPECT_TRUE(json()["restarts"].is_null());
}

TEST_F(Status, PrintsTheReasonOfAFailureOnce) {
  write_state({.phase = RunPhase::failed, .step = 20});
  train::record_failure(folder_, ExitCode::bad_input, "the data have changed");
  std::string text;
  for (const auto& line : to_lines(read_status(folder_), "runs/a")) text += line + "\n";
  const auto at = text.find("the data have changed");
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(text.find("the data have changed", at + 1), std::string::npos) << text;
}

TEST_F(Status, NamesTheFaultyRankOfTheStateFile) {
  write_state({.phase = RunPhase::stopped,
               .reason = "rank 3 on node2 hangs",
               .doing = "training step 8",
               .faulty_ranks = {3},
               .faulty_hosts = {"node2"}});
  const auto failure = json()["failure"];
  EXPECT_EQ(failure["rank"], 3);
  EXPECT_EQ(failure["host"], "node2");
  EXPECT_EQ(failure["phase"], "training step 8");
  EXPECT_EQ(failure["detail"], "rank 3 on node2 hangs");
  EXPECT_TRUE(failure["kind"].is_null());
  EXPECT_EQ(failure.size(), 11U);
}

TEST_F(Status, TakesTheDiagnosisOfFailureJson) {
  write_state({});
  const std::string text =
      R"({"kind":"hang","rank":3,"host":"node2","phase":"training","step":8,"axis":"shard",)"
      R"("collective":"all-gather","unit":"layers.4","waiting":[0,1],"detail":"silent for 61 s",)"
      R"("at":"2026-11-22T10:00:00Z"})";
  write("failure.json", text);
  EXPECT_EQ(json()["failure"].dump(), text);
  const auto lines = to_lines(read_status(folder_), "r");
  EXPECT_EQ(lines.back(),
            "  failure     hang, rank 3 on node2, training, in all-gather over shard: silent for "
            "61 s (2026-11-22T10:00:00Z)");
  for (const char* damaged : {"", "[]", "{", "nul"}) {
    write("failure.json", damaged);
    EXPECT_TRUE(json()["failure"].is_null()) << damaged;
  }
  train::write_failure(folder_, {.kind = "ended", .detail = "all at once"});  // nobody to blame
  EXPECT_EQ(json()["failure"]["kind"], "ended");
  EXPECT_TRUE(json()["failure"]["rank"].is_null());
  EXPECT_TRUE(json()["failure"]["host"].is_null());
  EXPECT_TRUE(json()["failure"]["at"].is_string());
  write("failure.json", R"({"kind":[1],"rank":"x","waiting":["a",4],"more":1})");
  EXPECT_TRUE(json()["failure"]["kind"].is_null());
  EXPECT_EQ(json()["failure"]["waiting"].dump(), "[4]");
  EXPECT_EQ(json()["failure"].size(), 11U);
}

TEST_F(Status, ATerminalObeysNothingOfTheFiles) {
  RunState state;
  state.phase = RunPhase::failed;
  state.reason = "a\x1b[2J\rb";
  write_state(state);
  write("failure.json", R"({"kind":"\u0007\u009b2J","detail":"c\u001b]0;d"})");
  testing::internal::CaptureStdout();
  EXPECT_EQ(status(folder_.string(), Output::text, Watch::no), 0);
  const auto out = testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find("a\\x1b[2J\\x0db\n"), out.npos) << out;
  EXPECT_NE(out.find("\\x07\\xc2\\x9b2J: c\\x1b]0;d\n"), out.npos) << out;
}

TEST_F(Status, OfWhatIsNoRunFolderIsAnError) {
  write("file", "x");
  EXPECT_NE(test::error_of([&] { read_status(folder_ / "file"); }).find("is not a folder"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { read_status(folder_ / "absent"); }).find("is not a folder"),
            std::string::npos);
}

TEST_F(Status, HostileFilesAreRefusedAtOnce) {
  fs::create_directory(folder_ / "checkpoints");
  for (const std::string name :
       {"state.json", "metrics.jsonl", "failure.json", "checkpoints/.lease"}) {
    for (const auto& kind : test::hostile_kinds()) {
      SCOPED_TRACE(fmt::format("{} as {}", kind, name));
      const test::TimeLimit limit(20);
      test::put_hostile(kind, folder_ / name);
      const auto error = test::error_of([&] { read_status(folder_); });
      EXPECT_NE(error.find(fs::path(name).filename().string()), std::string::npos) << error;
    }
    fs::remove_all(folder_ / name);
  }
  for (const std::string name : {"state.json", "failure.json"}) {
    test::put_sparse(folder_ / name, std::uintmax_t{1} << 40);
    test::error_of([&] { read_status(folder_); });
    fs::remove(folder_ / name);
  }
  test::put_sparse(folder_ / "metrics.jsonl", std::uintmax_t{1} << 40);
  EXPECT_EQ(phase(), "not_started");  // only its end is read
}

TEST_F(Status, OfAFolderOfRunsListsThem) {
  for (const char* name : {"b", "a", "not-a-run"}) fs::create_directory(folder_ / name);
  write("file", "");
  train::write_run_state(folder_ / "b", {.phase = RunPhase::done, .step = 4, .steps = 4});
  write("b/metrics.jsonl", step_line(4, 2.5, 10));
  train::write_run_state(
      folder_ / "a",
      {.phase = RunPhase::failed, .step = 1, .steps = 4, .reason = "a disk is full"});
  const auto text = [&](const std::string& path) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(status(path, Output::text, Watch::yes), 0);  // all have ended
    return testing::internal::GetCapturedStdout();
  };
  const auto a = (folder_ / "a").string(), b = (folder_ / "b").string();
  EXPECT_EQ(text(folder_.string()), a + ": failed, step 1 of 4: a disk is full\n" + b +
                                        ": done, step 4 of 4, loss 2.5000\n");
  EXPECT_NE(text(b).find("tokens/s"), std::string::npos) << "of a run by itself all is said";
  const auto json = to_json(list_runs(folder_));
  ASSERT_EQ(json["runs"].size(), 2U);
  EXPECT_EQ(json["runs"][0]["run"], a);
  EXPECT_EQ(json["runs"][1]["phase"], "done");
  write("a/state.json", "{");
  EXPECT_EQ(list_runs(folder_).size(), 2U) << "one that cannot be read hides no other";
}

TEST_F(Status, WatchingSaysWhatHappensUntilTheEnd) {
  write_state({.steps = 2});
  hold_lease();
  const auto printed = folder_ / "printed";
  const auto lines = [&] {
    std::vector<std::string> all;
    std::ifstream file(printed);
    for (std::string line; std::getline(file, line) && !file.eof();) all.push_back(line);
    return all;
  };
  const auto await_lines = [&](std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + test::stretched(std::chrono::seconds(60));
    while (lines().size() < count && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  const int file = open(printed.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(file, STDOUT_FILENO);
  auto run = std::async(std::launch::async, [&] {
    await_lines(1);
    write("metrics.jsonl", step_line(1, 5, 10));
    await_lines(2);
    write_state({.phase = RunPhase::done, .step = 2, .steps = 2});
  });
  const int code = status(folder_.string(), Output::json, Watch::yes);
  dup2(before, STDOUT_FILENO);
  close(before);
  close(file);
  run.get();
  EXPECT_EQ(code, 0);
  std::vector<std::string> phases;
  for (const auto& line : lines())
    phases.push_back(Json::parse(line)["phase"].dump() + " " + Json::parse(line)["step"].dump());
  EXPECT_EQ(phases, (std::vector<std::string>{"\"running\" 0", "\"running\" 1", "\"done\" 2"}));
}

}  // namespace
}  // namespace llamesh::app
