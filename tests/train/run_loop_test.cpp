#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/session.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "runs/whole_run.hpp"
#include "train/engine/flops.hpp"
#include "train/job/deadline.hpp"
#include "train/job/job_report.hpp"
#include "train/job/run_folder.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_state.hpp"

// Tests when a run saves and what stops it.

namespace llamesh::train {
namespace {

using test::inputs_in;
using test::SharedFolder;
using test::world;

constexpr std::int64_t endless = 1'000'000;

/// Runs, and rethrows run()'s error after the watchdog has ended: during unwinding it is left
/// alone, since other ranks may never reach its end.
ExitCode run_with(const Inputs& in) {
  const auto setup = make_setup(world(), in);
  ExitCode code{};
  std::exception_ptr error;
  {
    auto watchdog = watch_over(world());
    try {
      code = run(world(), setup, "run: {}\n", {}, watchdog).code;
    } catch (...) {
      error = std::current_exception();
    }
  }
  world().barrier();
  if (error) std::rethrow_exception(error);
  return code;
}

std::set<std::string> checkpoints_of(const Inputs& in) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(in.run.folder + "/checkpoints"))
    if (const auto name = entry.path().filename().string(); name.starts_with("step_"))
      names.insert(name);
  return names;
}

std::filesystem::path metrics_of(const Inputs& in) {
  return in.run.folder + "/metrics.jsonl";
}

/// Runs `what` on this rank once the run has done a step.
class AfterAStep {
 public:
  AfterAStep(const Inputs& in, std::function<void()> what)
      : thread_([metrics = metrics_of(in), what = std::move(what)](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            std::error_code ignored;
            if (!std::filesystem::exists(metrics, ignored) || last_step_of(metrics) < 1) continue;
            return what();
          }
        }) {}

 private:
  std::jthread thread_;
};

/// Checks that the run stopped after a step with a checkpoint, and that state.json gives the
/// reason.
void expect_stopped_and_saved(const Inputs& in, const std::string& reason) {
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->phase, RunPhase::stopped);
  EXPECT_EQ(state->exit_code, ExitCode::stopped_early);
  EXPECT_EQ(state->reason, reason);
  EXPECT_GE(state->step, 1);
  EXPECT_EQ(state->step, last_step_of(metrics_of(in)));
  EXPECT_EQ(checkpoints_of(in).count(fmt::format("step_{:08}", state->step)), 1U);
}

TEST(RunLoop, SavesWhereTheStepsSayAndAtTheEnd) {
  const SharedFolder folder;
  const auto in = inputs_in(folder.path());  // 12 steps, saving every 5
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_EQ(checkpoints_of(in),
            (std::set<std::string>{"step_00000005", "step_00000010", "step_00000012"}));
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->phase, RunPhase::done);
  EXPECT_EQ(state->step, 12);
}

std::int64_t collectives_entered() {
  return comm::FlightRecorder::instance().entered(world().members()->id);
}

/// Returns the number of collectives in which a run measures the GEMM peak again: it does if other
/// work on these cores was in the way of an earlier measurement.
std::int64_t collectives_of_later_peaks(const Inputs& in) {
  const auto before = collectives_entered();
  measured_gemm_rates(world(), DType::f32);
  const auto each = collectives_entered() - before;
  const auto log = read_file(log_file(in.run.folder), 1 << 20);
  std::int64_t peaks = 0;
  const std::string_view line = "measured again";
  for (auto at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++peaks;
  return peaks * each;
}

/// Returns the number of collectives over the world in a run, whatever its speed.
std::int64_t collectives_of(std::int64_t replica_hash_every) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());  // 12 steps, saving every 5
  in.debug.replica_hash_every = replica_hash_every;
  const auto before = collectives_entered();
  EXPECT_EQ(run_with(in), ExitCode::done);
  const auto entered = collectives_entered() - before;
  return entered - collectives_of_later_peaks(in);
}

TEST(RunLoop, ComparesReplicasAtTheirStepsAndBeforeASave) {
  const auto without = collectives_of(0);
  EXPECT_EQ(collectives_of(1) - without, 12);
  EXPECT_EQ(collectives_of(4) - without, 5);  // 4, 8, 12, and 5, 10, when a save is due
}

TEST(RunLoop, WritesALogOfEachRankAndEventFilesWhereTheyAreAskedFor) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  const auto log = fmt::format("{}/log.rank-{:05}.txt", in.run.folder, world().rank());
  in.train.steps = 2;
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_FALSE(std::filesystem::exists(log));
  EXPECT_FALSE(std::filesystem::exists(in.run.folder + "/tensorboard"));
  in.log.ranks = in.log.tensorboard = true;
  setup_logging();
  in.train.steps = 3;
  EXPECT_EQ(run_with(in), ExitCode::done);
  const auto text = read_file(log, 1 << 20);
  EXPECT_NE(text.find("resumed after step 2"), std::string::npos) << text;
  const std::filesystem::directory_iterator events(in.run.folder + "/tensorboard");
  EXPECT_EQ(std::distance(begin(events), end(events)), 1);  // rank 0's
  setup_logging();                                          // without these files
}

TEST(RunLoop, ShowsItsLatestLoggedStepToNodeExporter) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = 5;
  in.log.every_steps = 2;
  const auto file = (folder.path() / "llamesh.prom").string();
  in.log.openmetrics = file;
  EXPECT_EQ(run_with(in), ExitCode::done);
  const auto text = read_file(file, 1 << 20);
  for (const char* line :
       {"\nllamesh_step{run=\"", "\nllamesh_running{run=\"", "\nllamesh_loss{run=\""})
    EXPECT_NE(text.find(line), std::string::npos) << text;
  EXPECT_NE(text.find("\"} 5\n"), std::string::npos) << "the last step: " << text;
}

/// Returns whether the file for node_exporter has the metric with this value.
bool shows(const Inputs& in, const char* name, const char* value) {
  return read_file(in.log.openmetrics, 1 << 20)
             .find(fmt::format("\nllamesh_{}{{run=\"{}\"}} {}\n", name, in.run.name, value)) !=
         std::string::npos;
}

TEST(RunLoop, CountsRepeatedStepsOnce) {
  if (world().size() > 1) GTEST_SKIP() << "rank 0 alone writes";
  const SharedFolder folder;
  const auto in = inputs_in(folder.path());
  const auto setup = make_setup(world(), in);
  Deadline deadline(in.run.folder, /*watches=*/false);
  const auto train = [&](JobReport& report, std::int64_t step) {
    StepRecord record;
    record.step = step;
    record.seconds = 2;
    report.on_step(record);
  };
  {
    JobReport killed(world(), setup, deadline);
    killed.open();
    killed.start({"start", ""}, 0, {}, "run: {}\n", 1.5);
    for (const std::int64_t step : {1, 2}) train(killed, step);
    killed.on_saved(2, "step_00000002", 0.25, {});
    train(killed, 3);
  }
  const auto saved = read_run_state(in.run.folder)->goodput;
  EXPECT_EQ(saved.productive, 4);
  EXPECT_EQ(saved.saving, 0.25);
  EXPECT_EQ(saved.starting, 1.5);
  JobReport next(world(), setup, deadline);
  next.open();
  next.start({"resume", ""}, 2, {.on_disk = 2}, "run: {}\n", 0.5);
  for (const std::int64_t step : {3, 4}) train(next, step);
  next.on_end(RunPhase::done, ExitCode::done, "", 0);
  const auto all = read_run_state(in.run.folder)->goodput;
  EXPECT_EQ(all.productive, 8);
  EXPECT_EQ(all.repeated, 2);
  EXPECT_EQ(all.saving, 0.25);
  EXPECT_EQ(all.starting, 2);
  EXPECT_FALSE(all.waiting) << "not in Slurm";
}

// Below the run: an error in it leaves communicators that later tests would trip over.
TEST(RunLoop, ShowsAFailedRunAsEndedAndKeepsItsEnergy) {
  if (world().size() > 1) GTEST_SKIP() << "rank 0 alone writes";
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.log.openmetrics = (folder.path() / "llamesh.prom").string();
  const auto setup = make_setup(world(), in);
  Deadline deadline(in.run.folder, /*watches=*/false);
  {
    JobReport report(world(), setup, deadline);
    report.on_failure(/*on_this_rank=*/true);
    EXPECT_FALSE(std::filesystem::exists(in.log.openmetrics)) << "the start has not begun";
    report.open();
    report.start({}, 0, {}, "run: {}\n", 1.5);
    EXPECT_TRUE(shows(in, "running", "1"));
    StepRecord record;
    record.step = 1;
    record.joules = 20;
    report.on_step(record);
    report.on_failure(/*on_this_rank=*/true);
  }
  EXPECT_TRUE(shows(in, "running", "0"));
  EXPECT_EQ(read_run_state(in.run.folder)->joules, 20.0);
  write_run_state(in.run.folder, {.phase = RunPhase::failed, .starts_here = 2, .joules = 20.0});
  std::filesystem::remove(in.log.openmetrics);
  setenv("SLURM_JOB_ID", "4711", 1);
  JobReport refused(world(), setup, deadline);
  refused.open();
  EXPECT_THROW(refused.start({}, 0, {}, "run: {}\n", 1.5), Error) << "the third launch in a row";
  unsetenv("SLURM_JOB_ID");
  refused.on_failure(/*on_this_rank=*/true);
  EXPECT_TRUE(shows(in, "running", "0"));
  EXPECT_TRUE(shows(in, "energy_joules_total", "20"));
  EXPECT_EQ(read_run_state(in.run.folder)->joules, 20.0);
}

TEST(RunLoop, ShowsTheEnergyOfEarlierStartsAtOnce) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = 2;
  EXPECT_EQ(run_with(in), ExitCode::done);
  if (world().rank() == 0)
    write_run_state(in.run.folder, {.phase = RunPhase::stopped, .step = 2, .joules = 1234.5});
  world().barrier();
  const auto file = (folder.path() / "llamesh.prom").string();
  in.log.openmetrics = file;
  in.train.steps = endless;
  setenv("LLAMESH_JOB_END_TIME", std::to_string(std::time(nullptr) + 30).c_str(), 1);
  EXPECT_EQ(run_with(in), ExitCode::stopped_early) << "before a step";
  unsetenv("LLAMESH_JOB_END_TIME");
  EXPECT_NE(read_file(file, 1 << 20).find("\nllamesh_energy_joules_total{"), std::string::npos);
}

TEST(RunLoop, SavesWhereRankZerosClockSaysAndKeepsTheNewest) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = 6;
  in.checkpoint = {.every_minutes = 1e-9, .keep = 2, .async = true};
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_EQ(checkpoints_of(in), (std::set<std::string>{"step_00000005", "step_00000006"}));
  std::ifstream metrics(metrics_of(in));
  std::vector<std::int64_t> saved;
  for (std::string line; std::getline(metrics, line);)
    if (const auto entry = nlohmann::json::parse(line); entry.value("event", "") == "checkpoint")
      saved.push_back(entry.at("step"));
  EXPECT_EQ(saved, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST(RunLoop, AnEvaluationBetweenStepAndSaveKeepsBoth) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 5;
  in.evaluate.batches = 1;
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_EQ(checkpoints_of(in),
            (std::set<std::string>{"step_00000005", "step_00000010", "step_00000012"}));
}

/// Losses of a set in metrics.jsonl by step; an empty name is data.validation.
std::map<std::int64_t, double> losses_of(const Inputs& in, const std::string& set = "") {
  std::map<std::int64_t, double> losses;
  std::ifstream metrics(metrics_of(in));
  for (std::string line; std::getline(metrics, line);)
    if (const auto entry = nlohmann::json::parse(line);
        entry.value("event", "") == "validation" && entry.value("set", "") == set)
      losses[entry.at("step")] = entry.at("loss");
  return losses;
}

/// Inputs that evaluate every other step, with a learning rate at which the loss goes up and down.
Inputs evaluating_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 2;
  in.evaluate.batches = 1;
  in.optimizer.lr = 0.3;
  in.schedule.warmup_steps = 0;
  in.checkpoint.keep = 1;
  return in;
}

TEST(RunLoop, KeepsTheBestCheckpoints) {
  const SharedFolder folder;
  auto in = evaluating_inputs(folder.path());
  in.checkpoint.keep_best = 2;
  in.train.steps = 6;
  EXPECT_EQ(run_with(in), ExitCode::done);
  in.train.steps = 12;  // and goes on
  EXPECT_EQ(run_with(in), ExitCode::done);
  std::vector<std::pair<double, std::int64_t>> ranked;
  for (const auto& [step, loss] : losses_of(in)) ranked.emplace_back(loss, step);
  ASSERT_EQ(ranked.size(), 6U);
  std::ranges::sort(ranked);
  const auto name = [](std::int64_t step) { return fmt::format("step_{:08}", step); };
  EXPECT_EQ(checkpoints_of(in),
            (std::set<std::string>{name(ranked[0].second), name(ranked[1].second), name(12)}));
  std::ifstream best(in.run.folder + "/checkpoints/BEST");
  std::string named;
  std::getline(best, named);
  EXPECT_EQ(named, name(ranked[0].second));
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state && state->best);
  EXPECT_EQ(*state->best, (StepLoss{ranked[0].second, ranked[0].first}));
}

TEST(RunLoop, StopsEarlyOnceTheLossNoLongerImproves) {
  const SharedFolder folder;
  auto in = evaluating_inputs(folder.path());
  in.train.early_stop = {.patience = 2, .min_delta = 100};  // only the first loss is one
  in.checkpoint.every_steps = 0;
  in.train.steps = 4;
  EXPECT_EQ(run_with(in), ExitCode::done);
  in.train.steps = 12;
  EXPECT_EQ(run_with(in), ExitCode::done);  // the first evaluation of this launch is the second
  EXPECT_EQ(losses_of(in).rbegin()->first, 6);
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->phase, RunPhase::done);
  EXPECT_EQ(state->step, 6);
  EXPECT_EQ(state->reason.find("early stop: the validation loss has not improved by more than 100 "
                               "in 2 evaluations since step 2 ("),
            0U)
      << state->reason;
  EXPECT_EQ(run_with(in), ExitCode::done);  // nothing to do
  EXPECT_EQ(last_step_of(metrics_of(in)), 6);
  in.train.early_stop.patience = 3;
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_EQ(last_step_of(metrics_of(in)), 8);
}

TEST(RunLoop, StartsTheRecordOfLossesAnewWithOtherValidationData) {
  struct Case {
    std::function<void(Inputs&)> change;
    std::int64_t last_step;
  };
  const auto other_text = [](Inputs& in) {
    if (world().rank() == 0) std::ofstream(in.data.validation.front()) << std::string(700, 'y');
    world().barrier();
  };
  const std::vector<Case> cases{
      {other_text, 12},  // the loss after step 8 is the first of the new ones
      {[](Inputs& in) { in.evaluate.batches = 2; }, 12},
      {[](Inputs& in) { in.train.micro_batch = 2; }, 12},  // so a batch has other sequences
      {[](Inputs& in) { in.data.document_mask = true; }, 12},
      {[](Inputs& in) { in.optimizer.lr = 0.2; }, 6},  // nothing to do
      {[](Inputs& in) {
         in.evaluate.batches = 0;
         in.evaluate.sequences = world().size();  // as many as a batch of micro_batch 1
         in.train.micro_batch = 2;
       },
       6},
  };
  for (const auto& [change, last_step] : cases) {
    const SharedFolder folder;
    auto in = evaluating_inputs(folder.path());
    in.data.validation = {(folder.path() / "held-out.txt").string()};
    if (world().rank() == 0) std::ofstream(in.data.validation.front()) << std::string(600, 'x');
    world().barrier();
    in.train.early_stop = {.patience = 2, .min_delta = 100};  // only the first loss is one
    in.checkpoint.every_steps = 0;
    EXPECT_EQ(run_with(in), ExitCode::done);
    EXPECT_EQ(last_step_of(metrics_of(in)), 6);
    change(in);
    EXPECT_EQ(run_with(in), ExitCode::done);
    EXPECT_EQ(last_step_of(metrics_of(in)), last_step);
  }
}

TEST(RunLoop, EvaluatesEachSet) {
  const SharedFolder folder;
  auto in = evaluating_inputs(folder.path());
  const auto other = folder.path() / "other.txt";
  if (world().rank() == 0) std::ofstream(other) << std::string(200, 'x');
  world().barrier();
  in.evaluate.files = {{"xs", {other.string()}}, {"same", in.data.train}};
  in.evaluate.best_by = "xs";
  in.checkpoint.keep_best = 1;
  in.train.steps = 4;
  EXPECT_EQ(run_with(in), ExitCode::done);
  EXPECT_EQ(losses_of(in), losses_of(in, "same"));
  const auto xs = losses_of(in, "xs");
  ASSERT_EQ(xs.size(), 2U);
  EXPECT_NE(xs, losses_of(in));
  const auto best = xs.at(2) <= xs.at(4) ? 2 : 4;
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state && state->best);
  EXPECT_EQ(*state->best, (StepLoss{best, xs.at(best)}));
}

TEST(RunLoop, AHaltFileStopsItAndKeepsItFromStarting) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = endless;
  in.checkpoint.every_steps = 0;
  const auto halt = Deadline::halt_file(in.run.folder);
  {
    const AfterAStep touch(in, [&] {
      if (world().rank() == 0) std::ofstream(halt) << "";
    });
    EXPECT_EQ(run_with(in), ExitCode::stopped_early);
  }
  expect_stopped_and_saved(in, "the file " + halt.string());
  world().barrier();
  try {
    run_with(in);
    FAIL() << "it started";
  } catch (const comm::PeerFailure& failed) {
    EXPECT_NE(world().rank(), 0);
    EXPECT_EQ(failed.code(), ExitCode::bad_input);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("remove it"), std::string::npos) << error.what();
  }
}

TEST(RunLoop, ASignalToOneRankStopsAll) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = endless;
  in.checkpoint.every_steps = 0;
  catch_stop_signals();
  {
    const AfterAStep signal(in, [] {
      if (world().rank() == world().size() - 1) std::raise(SIGUSR2);
    });
    EXPECT_EQ(run_with(in), ExitCode::stopped_early);
  }
  catch_stop_signals();  // clears it
  expect_stopped_and_saved(in, "SIGUSR2");
}

TEST(RunLoop, DoesNotTrainWhereTheWalltimeIsTooShortToSave) {
  const SharedFolder folder;
  const auto in = inputs_in(folder.path());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto end = std::chrono::duration_cast<std::chrono::seconds>(now).count() + 50;
  setenv("SLURM_JOB_END_TIME", std::to_string(end).c_str(), 1);
  EXPECT_EQ(run_with(in), ExitCode::stopped_early);
  unsetenv("SLURM_JOB_END_TIME");
  EXPECT_LT(last_step_of(metrics_of(in)), 1);
  const auto state = read_run_state(in.run.folder);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->phase, RunPhase::stopped);
  EXPECT_EQ(state->reason, "the end of the walltime");
}

std::vector<nlohmann::json> spikes_of(const Inputs& in) {
  std::vector<nlohmann::json> spikes;
  std::ifstream file(metrics_of(in));
  for (std::string line; std::getline(file, line);)
    if (auto entry = nlohmann::json::parse(line); entry.value("event", "") == "spike")
      spikes.push_back(std::move(entry));
  return spikes;
}

TEST(RunLoop, ReportsALossThatJumps) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.train.steps = 104;
  in.checkpoint.every_steps = 0;
  in.data.order = data::Order::sequential;
  constexpr std::size_t bytes_of_a_step = std::size_t{12} * 24;
  std::string text;
  for (int i = 0; text.size() < 100 * bytes_of_a_step; ++i)
    text += fmt::format("the {} lamps of mesh {}\n", i * i % 97, i % 7);
  text.resize(100 * bytes_of_a_step);
  for (std::size_t i = 0; i < 5 * bytes_of_a_step; ++i)  // other letters
    text.push_back(static_cast<char>('A' + i * i % 17));
  if (world().rank() == 0) std::ofstream(folder.path() / "text.txt") << text;
  world().barrier();
  EXPECT_EQ(run_with(in), ExitCode::done);
  const auto spikes = spikes_of(in);
  ASSERT_GE(spikes.size(), 1U);
  for (const auto& spike : spikes) EXPECT_EQ(spike.at("step"), 101) << spike;
  EXPECT_NE(spikes.front().at("detail").get<std::string>().find("the loss is"), std::string::npos);
}

}  // namespace
}  // namespace llamesh::train
