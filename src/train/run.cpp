#include "train/run.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "checkpoint/format.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_weights.hpp"
#include "checkpoint/store.hpp"
#include "comm/session.hpp"
#include "comm/shared_window.hpp"
#include "comm/watchdog.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/version.hpp"
#include "device/device.hpp"
#include "train/deadline.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/resume.hpp"
#include "train/run_folder.hpp"
#include "train/run_state.hpp"
#include "train/shared_folder.hpp"
#include "train/trainer.hpp"
#include "train/watch.hpp"

namespace llamesh::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

using comm::Activity;

/// What the ranks have agreed to do after a step.
struct Next {
  Stop stop = Stop::no;
  bool save = false;
};

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
        mesh_(world, setup.topology, setup.mesh),
        trainer_(world, setup, mesh_),
        tensors_(checkpoint::state_of(trainer_.state())),
        store_(folder_ / "checkpoints", setup.inputs.checkpoint, world) {
    startup_.end_phase("communicators and model");
  }

  /// From here on the run folder is this job's.
  void start() {
    std::filesystem::path metrics;
    comm::agree(world_, [&] {
      if (world_.rank() == 0) metrics = open_run_folder(folder_);
    });
    spdlog::info("{}", trainer_.describe());
    if (device::kind() == device::Kind::cpu && !setup_.inputs.train.gemm_table.empty())
      spdlog::info("train.gemm_table is for GPUs: the CPU's products have one algorithm each");
    for (const std::string& line : trainer_.describe_data()) spdlog::info("{}", line);
    if (const auto& in = setup_.inputs; in.train.epochs > 0)
      spdlog::info("train.epochs {}: {} steps of {} sequences", in.train.epochs, in.train.steps,
                   in.train.global_batch);
    log_job();
    watchdog_.begin(Activity::resuming, 0, time_for_first_checkpoint(setup_));
    data_ = {
        .seed = setup_.inputs.run.seed,
        .fingerprint = comm::on_rank_0(world_, [&] {
          return data::to_text(setup_.train_tokens->fingerprint(setup_.inputs.train.global_batch));
        })};
    const auto [event, from] = resume();
    comm::agree(world_, [&] {
      if (world_.rank() != 0) return;
      const auto before = read_run_state(folder_);
      warn_of_sudden_end(before, metrics);
      state_ = start_after(before, std::max<std::int64_t>(saved_step_, 0),
                           std::getenv("SLURM_JOB_ID") != nullptr);
      write_run_state(folder_, state_);
      write_config(folder_, config_);
      metrics_ = std::make_unique<MetricsFile>(metrics, trainer_.step());
      metrics_->write_event(event, trainer_.step(), from);
      warn_of_short_walltime();
    });
    startup_.end_phase("resume");
  }

  ExitCode run_until_done() {
    const Inputs& in = setup_.inputs;
    if (const Stop stop = asked_before_training(); stop != Stop::no) {
      spdlog::info("{} asks the run to stop: it does so before it trains", describe(stop, folder_));
      record(RunPhase::stopped, ExitCode::stopped_early, describe(stop, folder_));
      return ExitCode::stopped_early;
    }
    Progress progress(trainer_.step(), in.train.steps, in.log.every_steps);
    const auto start = Clock::now();
    bool first = true;
    if (trainer_.step() >= in.train.steps)
      spdlog::info(
          "nothing to do: step {} of {} is done; go on with a larger train.{}, or train anew under "
          "another run.name",
          trainer_.step(), in.train.steps, in.train.epochs > 0 ? "epochs" : "steps");
    while (trainer_.step() < in.train.steps) {
      watchdog_.begin(Activity::training, trainer_.step() + 1);
      const StepRecord record =
          trainer_.train_step([this] { watchdog_.progress(); },
                              [&](double seconds) { return wanted(trainer_.step() + 1, seconds); });
      step_seconds_ = record.seconds;
      if (metrics_) metrics_->write(record);
      if (std::exchange(first, false)) log_startup(progress);
      progress.show(record.step, fields(record, in.train.steps), seconds_since(start));
      const bool last = record.step == in.train.steps;
      std::int64_t asked = record.request;
      if (in.evaluate.every_steps > 0 && (last || record.step % in.evaluate.every_steps == 0)) {
        evaluate(progress);
        asked = std::max(asked, world_.max(wanted(record.step, record.seconds),
                                           "whether to stop or save"));  // time has passed
      }
      const Next next = decode(asked);
      if (next.stop != Stop::no && !last) return stop_early(next.stop, progress);
      if (next.save) save(progress);
    }
    // Also when there was nothing left to train: a run that took its state from elsewhere owns it
    // now.
    if (saved_step_ != trainer_.step()) save(progress);
    finish_save();
    watchdog_.begin(Activity::ending, trainer_.step());
    record(RunPhase::done, ExitCode::done, "");
    return ExitCode::done;
  }

 private:
  void log_job() {
    if (const char* job = std::getenv("SLURM_JOB_ID")) {
      const char* restarts = std::getenv("SLURM_RESTART_COUNT");
      const auto left = deadline_.seconds_left(std::chrono::seconds(1));
      spdlog::info("job {}, restart {}, {}", job, restarts == nullptr ? "0" : restarts,
                   left ? fmt::format("{:.0f} s of walltime left", *left) : "no walltime known");
    }
  }

  /// Of a start that was killed, so that nobody could record why. On rank 0.
  static void warn_of_sudden_end(const std::optional<RunState>& before,
                                 const std::filesystem::path& metrics) {
    if (!before || before->phase != RunPhase::running) return;
    std::error_code ignored;
    const auto last = std::filesystem::exists(metrics, ignored) ? last_step_of(metrics) : 0;
    spdlog::warn(
        "the start before{} was killed, or lost its node: its state.json of {} still says that it "
        "runs; the last step that it did is {}, its newest checkpoint is of step {}",
        before->job.empty() ? "" : " (job " + before->job + ")", before->time,
        std::max({last, before->step, std::int64_t{0}}), before->step);
  }

  /// By what the start before has measured. On rank 0.
  void warn_of_short_walltime() {
    const auto left = deadline_.seconds_left();
    if (left && *left < state_.seconds_needed)
      spdlog::warn(
          "{:.0f} s of walltime are left, but two steps and the time to save need {:.0f} s, as the "
          "start before has found: the run will gain one step at most; give the job more time",
          *left, state_.seconds_needed);
  }

  void log_startup(Progress& progress) {
    startup_.end_phase("first step");
    progress.clear();
    spdlog::info("startup: {}", startup_.describe());
  }

  /// An event of metrics.jsonl: its name and detail.
  using Event = std::pair<std::string, std::string>;

  /// With the weights of a Hugging Face folder, or those that the seed makes.
  Event initialize_weights() {
    const auto& pretrained = setup_.inputs.pretrained;
    if (!pretrained.load_weights) return {"start", "a fresh start"};
    const auto begin = Clock::now();
    checkpoint::load_hf_weights(pretrained.hf, tensors_, world_, pretrained.load);
    trainer_.on_master_weights_loaded();
    spdlog::info("the weights are those of {}, read in {:.2f} s", pretrained.hf,
                 seconds_since(begin));
    return {"start", "the weights of " + pretrained.hf};
  }

  /// Says what the run goes on from.
  Event resume() {
    const auto own = folder_ / "checkpoints";
    const auto mode = resume_mode(world_, setup_.inputs.checkpoint.resume, own);
    const auto check = [&](const checkpoint::Progress& saved) {
      check_data(saved, data_, mode == "auto" ? own / checkpoint::name_of_step(saved.step) : "");
    };
    const auto found = store_.resume(tensors_, mode, check);
    if (!found) return initialize_weights();
    trainer_.on_master_weights_loaded();
    trainer_.resume_from(found->step, found->tokens);
    trainer_.keep_bf16_products(found->bf16_products);
    if (mode == "auto") saved_step_ = found->step;
    spdlog::info("resumed after step {}, saved on mesh {}", found->step, found->mesh);
    if (changes_ && world_.rank() == 0)
      for (const std::string& change : changes_(found->config, config_))
        spdlog::info("changed since step {}: {}", found->step, change);
    return {"resume", found->mesh};
  }

  Stop asked_before_training() {
    if (trainer_.step() >= setup_.inputs.train.steps) return Stop::no;
    return static_cast<Stop>(world_.max(static_cast<std::int64_t>(deadline_.asked(0, 0))));
  }

  /// Whether to stop and whether to save after `step`, as far as this rank knows: the greatest of
  /// all ranks' counts. What rank 0's clock says counts: clocks of ranks differ.
  std::int64_t wanted(std::int64_t step, double step_seconds) {
    const auto& options = setup_.inputs.checkpoint;
    const Stop stop = deadline_.asked(store_.slowest_save(), step_seconds);
    bool save = options.every_steps > 0 && step % options.every_steps == 0;
    if (options.every_minutes > 0 && world_.rank() == 0)
      save |= seconds_since(last_save_) >= 60 * options.every_minutes;
    // As one number; who stops saves anyway.
    return 2 * static_cast<std::int64_t>(stop) + (save ? 1 : 0);
  }

  static Next decode(std::int64_t wanted) {
    return {static_cast<Stop>(wanted / 2), wanted % 2 != 0};
  }

  /// The walltime may end before a save would: what is known of both decides, on rank 0.
  bool save_fits() {
    const auto left = deadline_.seconds_left();
    const bool fits = !left || store_.slowest_save() < *left;
    return world_.min(std::int64_t{fits}, "whether a save fits") != 0;
  }

  ExitCode stop_early(Stop stop, Progress& progress) {
    const auto reason = describe(stop, folder_);
    progress.clear();
    spdlog::info("{} asks the run to stop: it does so after step {}", reason, trainer_.step());
    finish_save();
    if (saved_step_ != trainer_.step()) {
      if (save_fits())
        save(progress);
      else
        spdlog::warn("there is no time left to save (it took {:.0f} s): step {} stays the newest",
                     store_.slowest_save(), std::max<std::int64_t>(saved_step_, 0));
    }
    finish_save();
    record(RunPhase::stopped, ExitCode::stopped_early, reason);
    return ExitCode::stopped_early;
  }

  void record(RunPhase phase, ExitCode code, const std::string& reason) {
    comm::agree(world_, [&] {
      if (world_.rank() != 0) return;
      state_.phase = phase;
      if (step_seconds_ > 0)
        state_.seconds_needed = lead_time(store_.slowest_save(), 2 * step_seconds_);
      state_.exit_code = code;
      state_.reason = reason;
      write_run_state(folder_, state_);
    });
  }

  /// Waits for an asynchronous save; only then is it told that there is a checkpoint.
  void finish_save() {
    if (under_way_.empty()) return;
    watchdog_.begin(Activity::saving, saved_step_, time_for_first_checkpoint(setup_));
    store_.wait();
    spdlog::info("saved {}", under_way_.string());
    if (metrics_) metrics_->write_event("checkpoint", saved_step_, under_way_.filename().string());
    under_way_.clear();
    if (world_.rank() != 0) return;
    state_.step = saved_step_;
    write_run_state(folder_, state_);
  }

  void save(Progress& progress) {
    finish_save();
    watchdog_.begin(Activity::saving, trainer_.step(), time_for_first_checkpoint(setup_));
    const auto start = Clock::now();
    const auto path = store_.save(
        tensors_, {.step = trainer_.step(),
                   .tokens = trainer_.tokens(),
                   .seed = data_.seed,
                   .mesh = comm::to_string(setup_.mesh),
                   .strategy = std::string(sharding::name_of(setup_.inputs.sharding.strategy)),
                   .config = config_,
                   .model_config = checkpoint::to_config_json(setup_.inputs.model),
                   .llamesh_version = version(),
                   .data = data_.fingerprint,
                   .bf16_products = trainer_.bf16_products()});
    last_save_ = Clock::now();
    saved_step_ = trainer_.step();
    progress.clear();
    under_way_ = path;
    if (setup_.inputs.checkpoint.async)
      spdlog::info("saving {}: the run stood for {:.2f} s", path.string(), seconds_since(start));
    else
      finish_save();
  }

  void evaluate(Progress& progress) {
    watchdog_.begin(Activity::evaluating, trainer_.step());
    const double loss = trainer_.evaluate([this] { watchdog_.progress(); });
    progress.clear();
    spdlog::info("step {}: validation loss {:.4f} nats a token", trainer_.step(), loss);
    if (metrics_) metrics_->write_validation(trainer_.step(), loss);
  }

  const comm::Communicator& world_;
  const Setup& setup_;
  const std::string& config_;
  const ConfigChanges& changes_;
  Startup startup_;
  std::filesystem::path folder_;
  Deadline deadline_;
  comm::Watchdog& watchdog_;
  comm::DeviceMesh mesh_;
  Trainer trainer_;
  checkpoint::State tensors_;  // views of parameters and moments
  DataOfRun data_;
  checkpoint::Store store_;
  std::unique_ptr<MetricsFile> metrics_;  // rank 0 only
  Clock::time_point last_save_ = Clock::now();
  std::filesystem::path under_way_;  // the checkpoint that is being saved
  std::int64_t saved_step_ = -1;     // the newest step that this run's own store has
  double step_seconds_ = 0;          // of the newest step
  RunState state_;                   // rank 0: as it is in state.json
};

}  // namespace

ExitCode run(const comm::Communicator& world, const Setup& setup, const std::string& config,
             Startup startup, comm::Watchdog& watchdog, const ConfigChanges& changes) {
  const std::filesystem::path folder = setup.inputs.run.folder;
  watchdog.begin(Activity::building, 0);
  std::unique_ptr<BorrowedFolder> made;  // removed again where the run leaves nothing in it
  comm::agree(world, [&] {
    comm::check_shared_memory();
    const auto halt = Deadline::halt_file(folder);
    validate(world.rank() != 0 || !std::filesystem::exists(halt),
             "{} asks this run to stand still; remove it to go on", halt.string());
    if (world.rank() == 0) made = std::make_unique<BorrowedFolder>(folder);
  });
  check_shared_folder(
      world, setup.topology.local_rank_of[static_cast<std::size_t>(world.rank())] == 0, folder);
  watchdog.set_alarm(alarm_of_run(folder));
  Run run(world, setup, config, std::move(startup), watchdog, changes);
  try {
    run.start();
    return run.run_until_done();
  } catch (const comm::PeerFailure&) {
    throw;
  } catch (const std::exception& any) {
    const Error error = as_error(any);
    record_failure(folder, error.code(), error.what());
    throw;
  }
}

}  // namespace llamesh::train
