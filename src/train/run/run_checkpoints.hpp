#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/memory/memory_checkpoints.hpp"
#include "checkpoint/store/store.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "train/job/job_report.hpp"
#include "train/records/validation_record.hpp"
#include "train/run/resume.hpp"
#include "train/run/run.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::train {

/// Returns to_text() of the training data's fingerprint. Collective.
std::string fingerprint_of_data(const comm::Communicator& world, const Setup& setup);

/// Reads the frozen weights, which a checkpoint does not hold, from its base model, or from the
/// copy that the inputs name, and proves by their hash that they are the same. Returns the folder.
/// Collective.
std::string load_base(const comm::Communicator& world, const Setup& setup,
                      const checkpoint::State& state, const checkpoint::BaseModel& saved);

/// A run's checkpoints: resuming, deciding when a save is due, and saving, asynchronously if the
/// inputs say so. Frozen weights are in the base model, whose hash each resume proves, or in the
/// checkpoints. checkpoint::Store manages the files and removes old ones;
/// checkpoint::MemoryCheckpoints has those in the nodes' memory.
class RunCheckpoints {
 public:
  /// Collective. Borrows everything except `folder`.
  RunCheckpoints(const comm::Communicator& world, const Setup& setup, const std::string& config,
                 Trainer& trainer, comm::Watchdog& watchdog, JobReport& report);

  /// Restores the trainer from the newest good checkpoint, in memory or on disk, or initializes it.
  /// `changes` is as in run(). Collective.
  StartEvent resume(const ConfigChanges& changes);

  /// Returns true if a save is due after `step`, as far as this rank knows: every rank decides by
  /// steps and validation losses, rank 0 alone by time, since the ranks' clocks differ.
  bool due(std::int64_t step) const;
  /// Notes the validation loss after `step` that decides on the best checkpoints and early stop;
  /// the same on every rank.
  void on_validation(std::int64_t step, double loss) { validation_.observe(step, loss); }
  const ValidationRecord& validation() const { return validation_; }
  /// Returns true if there is time for a save before the job ends, by rank 0's clock. Collective.
  bool fits(Deadline& deadline) const;
  /// Saves the trainer's state after its last step; an asynchronous save continues until finish().
  /// Collective.
  void save();
  /// Waits for an asynchronous save; only then is the checkpoint reported. Collective.
  void finish();

  /// Throws exit 74 if the run folder's file system has no room for a save. Collective.
  void check_room() { store_.check_room(saved_state()); }

  /// Takes memory for memory checkpoints, if the run has some; otherwise removes those of earlier
  /// launches. Collective.
  void reserve_memory();
  /// Returns true if a memory checkpoint is due after the trainer's last step; the same on every
  /// rank.
  bool due_in_memory() const;
  /// Makes a memory checkpoint of the trainer's state after its last step. Collective.
  void save_in_memory();
  /// Returns true if the trainer's state is in memory checkpoints, but not on disk.
  bool only_in_memory() const;
  /// Returns true if the trainer's state is only in memory, and its save on disk was due or may
  /// have been: an earlier launch did not finish it. The same on every rank.
  bool owes_save() const;
  /// Removes memory checkpoints at the end, unless one is newer than those on disk. Collective.
  void release_memory();

  /// Returns the step of the run's newest own checkpoint on disk; -1: none.
  std::int64_t saved_step() const { return saved_step_; }
  OwnCheckpoints own_checkpoints() const {
    return {std::max<std::int64_t>(saved_step_, 0), std::max<std::int64_t>(memory_step_, 0)};
  }
  /// Returns the attention recorded in the checkpoint that the run resumed from; empty: none.
  const std::string& saved_attention() const { return saved_attention_; }
  double slowest_save() const { return store_.slowest_save(); }

 private:
  using Clock = std::chrono::steady_clock;

  void check_run(const checkpoint::TrainState& saved, const std::optional<OwnRun>& own) const;
  std::optional<checkpoint::TrainState> resume_from_memory();
  void watch_copying();
  std::vector<std::int64_t> steps_on_disk() const;
  StartEvent initialize_weights();
  void load_reference_model();
  void find_references(std::uint64_t frozen);
  void restore_references(const checkpoint::TrainState& saved);
  void refer_to_base(const std::string& folder, std::uint64_t hash);
  void restore_validation(const checkpoint::TrainState& saved);
  checkpoint::TrainState progress_now() const;
  /// Frozen weights are saved if there is no base to refer to.
  checkpoint::State saved_state() const { return base_ ? state_.trained() : state_; }

  const comm::Communicator& world_;
  const Setup& setup_;
  const std::string& config_;
  Trainer& trainer_;
  comm::Watchdog& watchdog_;
  JobReport& report_;
  std::filesystem::path folder_;               ///< the run's own checkpoints
  checkpoint::State state_;                    ///< views into the trainer
  std::optional<checkpoint::BaseModel> base_;  ///< of what is saved
  DataOfRun data_;
  std::optional<checkpoint::PairReference> reference_;   ///< if the run trains on pairs
  std::optional<checkpoint::MemoryCheckpoints> memory_;  ///< ends after the store's saves
  checkpoint::Store store_;
  Clock::time_point last_save_ = Clock::now();
  std::filesystem::path under_way_;         ///< checkpoint being saved
  std::optional<StepLoss> best_under_way_;  ///< best checkpoint once that one is saved
  double blocked_seconds_ = 0;              ///< training has waited for it
  std::int64_t disk_step_ = -1;             ///< newest on disk at the start
  std::int64_t saved_step_ = -1;
  std::int64_t memory_step_ = -1;
  std::string saved_attention_;
  ValidationRecord validation_;
};

}  // namespace llamesh::train
