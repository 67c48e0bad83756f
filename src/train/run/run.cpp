#include "train/run/run.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transports/shared_window.hpp"
#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/nan_sign.hpp"
#include "train/engine/kernel_choice.hpp"
#include "train/health/state_hash.hpp"
#include "train/job/deadline.hpp"
#include "train/job/flight_files.hpp"
#include "train/job/job_report.hpp"
#include "train/job/profile.hpp"
#include "train/job/shared_folder.hpp"
#include "train/job/watch.hpp"
#include "train/preflight/preflight.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_state.hpp"
#include "train/run/run_checkpoints.hpp"
#include "train/step/replica_check.hpp"
#include "train/step/trainer.hpp"
#include "train/terminal/progress_bar.hpp"

namespace llamesh::train {
namespace {

using Clock = std::chrono::steady_clock;

using comm::Activity;

/// The ranks' decision after a step.
struct Next {
  Stop stop = Stop::no;
  bool save = false;

  /// As one integer, of which the maximum over the ranks counts; a stop saves anyway.
  std::int64_t encode() const { return 2 * static_cast<std::int64_t>(stop) + (save ? 1 : 0); }
  static Next decode(std::int64_t number) {
    return {static_cast<Stop>(number / 2), number % 2 != 0};
  }
};

/// The loop over the steps.
class Run {
 public:
  Run(const comm::Communicator& world, const Setup& setup, const std::string& config,
      Startup startup, comm::Watchdog& watchdog, const ConfigChanges& changes)
      : world_(world),
        setup_(setup),
        config_(config),
        changes_(changes),
        startup_(std::move(startup)),
        folder_(setup.inputs.run.folder),
        deadline_(folder_, world.rank() == 0),
        watchdog_(watchdog),
        slow_nodes_(check_health(world, setup)),
        mesh_(world, setup.topology, setup.mesh, setup.order_of_sums()),
        trainer_(world, setup, mesh_),
        replica_check_(world, setup, mesh_, trainer_),
        report_(world, setup, deadline_),
        checkpoints_(world, setup, config, trainer_, watchdog, report_),
        profile_(world, setup) {
    trainer_.measure_gemm_peak();
    startup_.end_phase("communicators and model");
  }

  /// Opens the run folder for this job. A run that was done keeps its files.
  void start() {
    report_.open();
    flight_.emplace(world_, setup_.topology, folder_);
    report_.log_job(trainer_);
    for (const auto& line : slow_nodes_) spdlog::warn("{}", line);
    for (const auto& line : {replica_check_.describe(), trainer_.observers().replay().describe()})
      if (!line.empty()) spdlog::info("{}", line);
    const StartEvent event = checkpoints_.resume(changes_);
    nothing_to_do_ =
        is_done() && checkpoints_.saved_step() == trainer_.step() && report_.was_done();
    if (nothing_to_do_) return;
    checkpoints_.check_room();  // not only at the first save, after hours
    report_.start(event, trainer_.step(), checkpoints_.own_checkpoints(), config_,
                  startup_.seconds());
    profile_.check(trainer_.step());
    checkpoints_.reserve_memory();
    startup_.end_phase("resume");
  }

  void on_failure(bool on_this_rank) noexcept { report_.on_failure(on_this_rank); }

  RunEnd run_until_done() {
    if (const Stop stop = asked_before_training(); stop != Stop::no) {
      if (checkpoints_.only_in_memory()) return stop_early(stop);
      checkpoints_.release_memory();
      spdlog::info("{}: stopping before the first step", describe(stop, folder_));
      return end(RunPhase::stopped, ExitCode::stopped_early, describe(stop, folder_));
    }
    const TrainOptions& train = setup_.inputs.train;
    if (trainer_.step() >= train.steps)
      spdlog::info(
          "nothing to do: the run has done {} steps, and train.steps is {}; continue with a larger "
          "train.{}, or start a new run under another run.name",
          trainer_.step(), train.steps, train.epochs > 0 ? "epochs" : "steps");
    else if (is_done())
      spdlog::info(
          "nothing to do: the run ended after step {} ({}); continue with a larger "
          "train.early_stop.patience, or 0",
          trainer_.step(), checkpoints_.validation().describe_stop());
    if (nothing_to_do_) {
      checkpoints_.release_memory();
      return {ExitCode::done, trainer_.step(), startup_.seconds(), {}, /*nothing_to_do=*/true};
    }
    ProgressBar progress(trainer_.step(), train.steps, setup_.inputs.log.every_steps);
    const auto start = Clock::now();
    if (checkpoints_.owes_save()) save();
    while (!is_done()) {
      const Next next = step(progress, start);
      if (next.stop != Stop::no && !is_done()) return stop_early(next.stop);
      if (checkpoints_.due_in_memory()) save_in_memory();
      if (next.save) save();
    }
    // Also when there was nothing left to train: a run that took its state from
    // elsewhere owns it now.
    if (checkpoints_.saved_step() != trainer_.step()) save();
    checkpoints_.finish();
    checkpoints_.release_memory();
    watchdog_.begin(Activity::ending, trainer_.step());
    const bool early = trainer_.step() < train.steps;
    return end(RunPhase::done, ExitCode::done,
               early ? checkpoints_.validation().describe_stop() : "");
  }

 private:
  /// Returns the same on every rank.
  bool is_done() const {
    return trainer_.step() >= setup_.inputs.train.steps ||
           checkpoints_.validation().has_stopped_improving();
  }

  Stop asked_before_training() {
    if (is_done()) return Stop::no;
    return static_cast<Stop>(world_.max(static_cast<std::int64_t>(deadline_.asked(0, 0))));
  }

  /// A step and the evaluation that is due after it.
  Next step(ProgressBar& progress, Clock::time_point start) {
    const Inputs& in = setup_.inputs;
    watchdog_.begin(Activity::training, trainer_.step() + 1);
    const auto asked = [this](std::int64_t step, double seconds) {
      return Next{deadline_.asked(checkpoints_.slowest_save(), seconds), checkpoints_.due(step)}
          .encode();
    };
    profile_.begin(trainer_.step() + 1);
    const StepRecord record =
        trainer_.train_step([this] { watchdog_.progress(); },
                            [&](double seconds) { return asked(trainer_.step() + 1, seconds); },
                            [this] { return heal_nonfinite(); });
    if (profile_.end(record.step)) profile_.write();
    loss_ = without_nan_sign(record.loss);
    report_.on_step(record);
    const auto hash_every = in.debug.state_hash_every;
    if (hash_every > 0 && record.step % hash_every == 0) {
      trainer_.settle();
      report_.on_state_hashes(record.step, hash_state(world_, trainer_.state()));
    }
    if (replica_check_.due()) check_replicas();
    if (std::exchange(first_, false)) {
      check_attention(world_, checkpoints_.saved_attention());
      log_startup();
    }
    progress.show(record.step, log_fields(record, in.train.steps), seconds_since(start));
    const bool evaluates =
        in.evaluate.every_steps > 0 &&
        (record.step == in.train.steps || record.step % in.evaluate.every_steps == 0);
    if (!evaluates) return Next::decode(record.request);
    evaluate();
    // The deadline may have passed.
    return Next::decode(std::max(
        record.request, world_.max(asked(record.step, record.seconds), "whether to stop or save")));
  }

  void check_replicas() {
    for (const auto& line : replica_check_.check()) report_.on_healed(trainer_.step(), line);
  }

  /// A step is not finite: compares the replicas before that counts as divergence, since a flipped
  /// bit may have caused it. Returns whether replicas were healed.
  bool heal_nonfinite() {
    const auto lines = replica_check_.check_again();
    for (const auto& line : lines)
      report_.on_healed(trainer_.step(),
                        fmt::format("{}; step {}, which was not finite, is computed again", line,
                                    trainer_.step() + 1));
    return !lines.empty();
  }

  /// Saves only state that has been checked.
  void save() {
    check_replicas();
    trainer_.check_weights();
    checkpoints_.save();
  }

  /// Call it before a save on disk, which may fail.
  void save_in_memory() {
    check_replicas();
    trainer_.check_weights();
    checkpoints_.save_in_memory();
  }

  void log_startup() {
    startup_.end_phase("first step");
    report_.on_started(startup_, trainer_.step());
  }

  void evaluate() {
    watchdog_.begin(Activity::evaluating, trainer_.step());
    const auto sets = setup_.inputs.validation_sets();
    std::vector<StepRecord> records;
    std::string text;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const auto& record =
          records.emplace_back(trainer_.evaluate([this] { watchdog_.progress(); }, i));
      auto loss = fmt::format("{:.4f}", record.loss);
      if (const auto pairs = describe_pairs(record); !pairs.empty())
        loss += fmt::format(" ({})", pairs);
      text +=
          sets.size() == 1 ? loss : fmt::format("{}{} {}", i == 0 ? "" : ", ", sets[i].name, loss);
      if (sets[i].name == setup_.inputs.deciding_set())
        checkpoints_.on_validation(trainer_.step(), on_all_ranks(record.loss));
    }
    spdlog::info("step {}: validation loss {} nats per {}", trainer_.step(), text,
                 setup_.inputs.data.pairs ? "pair" : "token");
    report_.on_validation(records);
    report_.on_samples(trainer_.step(), trainer_.write_samples([this] { watchdog_.progress(); }));
    if (checkpoints_.validation().has_stopped_improving() &&
        trainer_.step() < setup_.inputs.train.steps)
      report_.on_early_stop(trainer_.step(), checkpoints_.validation().describe_stop());
  }

  /// Returns rank 0's value: what depends on it is the same on all ranks, to the bit.
  double on_all_ranks(double value) {
    return comm::broadcast_list(world_, std::vector{value}).front();
  }

  RunEnd stop_early(Stop stop) {
    const auto reason = describe(stop, folder_);
    spdlog::info("{}: stopping after step {}", reason, trainer_.step());
    checkpoints_.finish();
    if (checkpoints_.saved_step() != trainer_.step()) {
      if (checkpoints_.fits(deadline_))
        save();
      else
        spdlog::warn(
            "no time is left to save step {} (a save took {:.0f} s): the newest checkpoint is of "
            "step {}",
            trainer_.step(), checkpoints_.slowest_save(),
            std::max<std::int64_t>(checkpoints_.saved_step(), 0));
    }
    checkpoints_.finish();
    checkpoints_.release_memory();
    return end(RunPhase::stopped, ExitCode::stopped_early, reason);
  }

  RunEnd end(RunPhase phase, ExitCode code, const std::string& reason) {
    profile_.write();
    report_.on_end(phase, code, reason, checkpoints_.slowest_save());
    return {code, trainer_.step(), startup_.seconds(), loss_, /*nothing_to_do=*/false};
  }

  const comm::Communicator& world_;
  const Setup& setup_;
  const std::string& config_;
  const ConfigChanges& changes_;
  Startup startup_;
  std::filesystem::path folder_;
  Deadline deadline_;
  comm::Watchdog& watchdog_;
  std::vector<std::string> slow_nodes_;  // lines for the log
  comm::DeviceMesh mesh_;
  Trainer trainer_;
  ReplicaCheck replica_check_;
  JobReport report_;
  RunCheckpoints checkpoints_;
  Profile profile_;
  std::optional<FlightFiles> flight_;
  bool first_ = true;           // step of this launch
  bool nothing_to_do_ = false;  // the run was done before this launch
  std::optional<double> loss_;
};

}  // namespace

RunEnd run(const comm::Communicator& world, const Setup& setup, const std::string& config,
           Startup startup, comm::Watchdog& watchdog, const ConfigChanges& changes) {
  const std::filesystem::path folder = setup.inputs.run.folder;
  watchdog.begin(Activity::building, 0);
  std::unique_ptr<BorrowedFolder> made;  // removed again where it is empty in the end
  comm::agree(world, [&] {
    comm::check_shared_memory();
    validate(world.rank() != 0 || !Deadline::halt_file_is_there(folder),
             "halt file {} present: the run does not start; remove it to continue",
             Deadline::halt_file(folder).string());
    if (world.rank() == 0) made = std::make_unique<BorrowedFolder>(folder);
  });
  check_shared_folder(
      world, setup.topology.local_rank_of[static_cast<std::size_t>(world.rank())] == 0, folder);
  watchdog.set_alarm(alarm_of_run(folder));
  Run run(world, setup, config, std::move(startup), watchdog, changes);
  try {
    run.start();
    return run.run_until_done();
  } catch (const comm::PeerFailure& failed) {
    comm::FlightRecorder::instance().end(static_cast<int>(failed.code()));
    run.on_failure(/*on_this_rank=*/false);
    throw;
  } catch (const std::exception& any) {
    if (dynamic_cast<const comm::MpiFailure*>(&any) != nullptr) watchdog.await_diagnosis();
    const Error error = as_error(any);
    run.on_failure(/*on_this_rank=*/true);
    record_failure(folder, error.code(), error.what());
    // Unwinding waits for an asynchronous save. Until it has ended, this rank is not late.
    const auto limit = time_for_first_checkpoint(setup);
    if (setup.inputs.checkpoint.async) watchdog.begin(Activity::saving, 0, limit, limit);
    throw;
  }
}

}  // namespace llamesh::train
