#include "train/run.hpp"

#include <chrono>
#include <filesystem>
#include <memory>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/store.hpp"
#include "core/log.hpp"
#include "core/version.hpp"
#include "train/metrics.hpp"
#include "train/progress.hpp"
#include "train/run_folder.hpp"
#include "train/trainer.hpp"

namespace llamesh::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
 public:
  Run(const comm::Communicator& world, const Setup& setup, const std::string& config)
      : world_(world),
        setup_(setup),
        config_(config),
        trainer_(world, setup),
        store_(
            std::filesystem::path(setup.inputs.run.folder) / "checkpoints", setup.inputs.checkpoint,
            {world, trainer_.mesh().axis("shard").group, trainer_.mesh().axis("replicate").group}) {
    comm::agree(world, [&] {
      if (world.rank() == 0)
        metrics_ = std::make_unique<MetricsFile>(open_run_folder(setup.inputs.run.folder, config));
    });
    spdlog::info("{}", trainer_.describe());
    resume();
  }

  void to_the_end() {
    const Inputs& in = setup_.inputs;
    Progress progress(trainer_.step(), in.train.steps, in.log.every_steps);
    const auto start = Clock::now();
    while (trainer_.step() < in.train.steps) {
      const StepRecord record = trainer_.train_step();
      if (metrics_) metrics_->write(record);
      progress.show(record.step, describe(record, in.train.steps), seconds_since(start));
      const bool last = record.step == in.train.steps;
      if (in.evaluate.every_steps > 0 && (last || record.step % in.evaluate.every_steps == 0))
        evaluate(progress);
      if (save_is_due()) save(progress);
    }
    // Also when there was nothing left to train: a run that took its state from elsewhere owns it
    // now.
    if (saved_step_ != trainer_.step()) save(progress);
    finish_save();
  }

 private:
  /// What the run itself has saved comes first: a requeued job is started by the same command line,
  /// and must not begin again where its first start did.
  std::string resume_mode() const {
    const auto& mode = setup_.inputs.checkpoint.resume;
    const auto newest = comm::on_rank_0(world_, [&] {
      const auto own = checkpoint::committed_checkpoints(folder());
      return own.empty() ? std::string() : own.front().string();
    });
    if (newest.empty() || mode == "auto") return mode;
    comm::agree(world_, [&] {
      validate(mode != "none",
               "checkpoint.resume is none, but this run has saved {} already; choose another "
               "run.name, or remove the folder to start anew",
               newest);
    });
    spdlog::info("the run goes on from its own checkpoints, not from {}", mode);
    return "auto";
  }

  void resume() {
    const auto mode = resume_mode();
    const auto found = store_.resume(state(), mode);
    if (!found) {
      if (metrics_) metrics_->write_event("resume", 0, "a fresh start");
      return;
    }
    comm::agree(world_, [&] {
      validate(
          found->seed == setup_.inputs.run.seed,
          "the checkpoint was made with run.seed {}, not {}: its data would be seen in another "
          "order; keep the seed, or start anew under another run.name",
          found->seed, setup_.inputs.run.seed);
      const auto step_tokens =
          setup_.inputs.train.global_batch * setup_.inputs.data.sequence_length;
      validate(found->tokens == found->step * step_tokens,
               "the checkpoint has seen {} tokens in {} steps, but train.global_batch {} x "
               "data.sequence_length {} makes {}: data would be skipped or seen twice; set them as "
               "they were",
               found->tokens, found->step, setup_.inputs.train.global_batch,
               setup_.inputs.data.sequence_length, found->step * step_tokens);
    });
    trainer_.go_on_from(found->step, found->tokens);
    if (mode == "auto") saved_step_ = found->step;
    spdlog::info("resumed after step {}, saved on mesh {}", found->step, found->mesh);
    if (metrics_) metrics_->write_event("resume", found->step, found->mesh);
  }

  std::filesystem::path folder() const {
    return std::filesystem::path(setup_.inputs.run.folder) / "checkpoints";
  }

  checkpoint::State state() {
    checkpoint::State state{*setup_.layout, trainer_.fsdp().shard_rank(), {}};
    auto& masters = state.groups.emplace_back(checkpoint::StateGroup{"/model", {}});
    for (std::size_t u = 0; u < setup_.layout->units().size(); ++u)
      masters.shards.push_back(trainer_.fsdp().master(u));
    for (const auto& moment : trainer_.optimizer().moments())
      state.groups.push_back({"/optimizer/" + moment.name, moment.shards});
    return state;
  }

  /// The clock is rank 0's: clocks of ranks differ.
  bool save_is_due() const {
    const auto& options = setup_.inputs.checkpoint;
    if (options.every_steps > 0 && trainer_.step() % options.every_steps == 0) return true;
    if (options.every_minutes <= 0) return false;
    const bool due = world_.rank() == 0 && seconds_since(last_save_) >= 60 * options.every_minutes;
    return world_.max(std::int64_t{due}) != 0;
  }

  /// Waits for an asynchronous save; only then is it told that there is a checkpoint.
  void finish_save() {
    store_.wait();
    if (under_way_.empty()) return;
    spdlog::info("saved {}", under_way_.string());
    if (metrics_) metrics_->write_event("checkpoint", saved_step_, under_way_.filename().string());
    under_way_.clear();
  }

  void save(Progress& progress) {
    finish_save();
    const auto start = Clock::now();
    const auto path = store_.save(
        state(), {.step = trainer_.step(),
                  .tokens = trainer_.tokens(),
                  .seed = setup_.inputs.run.seed,
                  .mesh = comm::to_string(setup_.mesh),
                  .strategy = std::string(sharding::name_of(setup_.inputs.sharding.strategy)),
                  .config = config_,
                  .model_config = checkpoint::to_config_json(setup_.inputs.model),
                  .llamesh_version = version()});
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
    const double loss = trainer_.evaluate();
    progress.clear();
    spdlog::info("step {}: validation loss {:.4f} nats a token", trainer_.step(), loss);
    if (metrics_) metrics_->write_validation(trainer_.step(), loss);
  }

  const comm::Communicator& world_;
  const Setup& setup_;
  const std::string& config_;
  Trainer trainer_;
  checkpoint::Store store_;
  std::unique_ptr<MetricsFile> metrics_;  // rank 0 only
  Clock::time_point last_save_ = Clock::now();
  std::filesystem::path under_way_;  // the checkpoint that is being saved
  std::int64_t saved_step_ = -1;     // the newest step that this run's own store has
};

}  // namespace

void run(const comm::Communicator& world, const Setup& setup, const std::string& config) {
  Run(world, setup, config).to_the_end();
}

}  // namespace llamesh::train
