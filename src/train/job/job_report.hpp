#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "train/job/deadline.hpp"
#include "train/job/startup.hpp"
#include "train/openmetrics/openmetrics_file.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_state.hpp"
#include "train/step/trainer.hpp"
#include "train/tensorboard/event_file.hpp"

namespace llamesh::train {

/// A run's start event in metrics.jsonl: "start" or "resume", and its source.
struct StartEvent {
  std::string name;
  std::string detail;
};

/// Steps of a run's newest own checkpoints; 0: none.
struct OwnCheckpoints {
  std::int64_t on_disk = 0;
  std::int64_t in_memory = 0;
};

/// Writer for a run's records, for users and for the job script: state.json, metrics.jsonl,
/// config.yaml and event files, and log lines about the job. Rank 0 writes; the other ranks only
/// write their own logs. An I/O failure throws (exit 74), except for an event file and the file for
/// node_exporter, which are then given up.
class JobReport {
 public:
  /// Borrows all arguments.
  JobReport(const comm::Communicator& world, const Setup& setup, Deadline& deadline);

  /// Opens the run folder for this job: starts log.txt and, with log.ranks, each rank's own log.
  /// Collective.
  void open();
  /// Logs the model and data, and the Slurm job with its walltime.
  void log_job(const Trainer& trainer);
  /// Returns true if state.json says that the run is done. Then writes the file again with this
  /// job's id and the time, by which a job script sees that this launch came so far. Collective.
  bool was_done();
  /// Records that the run continues after `step`, as in `event`; the launch has taken `seconds` so
  /// far. Warns if the previous launch ended unexpectedly, and throws if another launch would not
  /// help (start_after()). Collective.
  void start(const StartEvent& event, std::int64_t step, const OwnCheckpoints& own,
             const std::string& config, double seconds);

  /// Records that this launch's first step is done.
  void on_started(const Startup& startup, std::int64_t step);
  void on_step(const StepRecord& record);
  /// Records that replicas differed after `step` and were made equal again.
  void on_healed(std::int64_t step, const std::string& line);
  void on_state_hashes(std::int64_t step, const StateHashes& hashes);
  void on_samples(std::int64_t step, const std::vector<SampleText>& samples);
  /// Records an evaluation: a record for each set, in the order of Inputs::validation_sets().
  void on_validation(const std::vector<StepRecord>& of_sets);
  /// Records that the run ends because its validation loss has stopped improving.
  void on_early_stop(std::int64_t step, const std::string& line);
  /// Records that the checkpoint `name` for `step` is on disk, and the best one kept; training has
  /// waited `seconds` for it.
  void on_saved(std::int64_t step, const std::string& name, double seconds,
                const std::optional<StepLoss>& best);
  /// Records a memory checkpoint of `step`, for which training has waited `seconds`. state.json
  /// gets it when it is next written, so this does not wait for the disk.
  void on_saved_in_memory(std::int64_t step, double seconds);
  /// Records the end of the run; `slowest_save` is in seconds. Collective.
  void on_end(RunPhase phase, ExitCode code, const std::string& reason, double slowest_save);
  /// Shows that the run has ended by a failure, and if `on_this_rank`, writes the energy to
  /// state.json (else the rank that fails may be writing the file). Ignores I/O failures, since a
  /// worse error is being reported.
  void on_failure(bool on_this_rank) noexcept;

 private:
  std::optional<RunState> explain_sudden_end(std::optional<RunState> before) const;
  void record_chat_template() const;
  void warn_of_short_walltime();
  void start_goodput(const std::optional<RunState>& before, double seconds);
  void update_goodput();
  void show_in_tensorboard(const std::function<void(EventFile&)>& write);
  void show_in_openmetrics(const StepRecord* record);

  const comm::Communicator& world_;
  const Setup& setup_;
  std::filesystem::path folder_;
  Deadline& deadline_;
  std::filesystem::path metrics_path_;
  std::unique_ptr<MetricsFile> metrics_;              ///< rank 0
  std::unique_ptr<EventFile> events_;                 ///< rank 0, with log.tensorboard
  std::unique_ptr<OpenMetricsFile> openmetrics_;      ///< rank 0, with log.openmetrics
  RunGauges gauges_;                                  ///< rank 0
  StepRecord latest_;                                 ///< rank 0, with log.openmetrics
  RunState state_;                                    ///< rank 0: state.json's content
  double step_seconds_ = 0;                           ///< latest step
  std::chrono::steady_clock::time_point loop_begin_;  ///< rank 0: when this launch began to train
  double in_loop_ = 0;                                ///< rank 0: seconds of its steps and saves
  double other_before_ = 0;                     ///< rank 0: Goodput::other of earlier launches
  std::future<std::optional<double>> waiting_;  ///< rank 0: Slurm's answer
};

}  // namespace llamesh::train
