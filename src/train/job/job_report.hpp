#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "train/job/deadline.hpp"
#include "train/job/run_state.hpp"
#include "train/job/startup.hpp"
#include "train/metrics.hpp"
#include "train/spikes.hpp"
#include "train/tensorboard/event_file.hpp"
#include "train/trainer.hpp"

namespace llamesh::train {

/// How a run started, as an event of metrics.jsonl: "start" or "resume", and from what.
struct StartEvent {
  std::string name;
  std::string detail;
};

/// Writes what a run records in its folder for users and for the job script: state.json,
/// metrics.jsonl, config.yaml and event files, and lines of the log about the job. Rank 0 writes;
/// on the other ranks nothing happens, but for their own logs. An I/O failure throws (exit 74), but
/// for that of an event file, which is given up.
class JobReport {
 public:
  /// All are borrowed.
  JobReport(const comm::Communicator& world, const Setup& setup, Deadline& deadline);

  /// Opens the run folder for this job: starts log.txt, and with log.ranks each rank's own log.
  /// Collective.
  void open();
  /// Logs what is trained on which data, and the Slurm job with its walltime.
  void log_job(const Trainer& trainer);
  /// The run continues after `step`, as `event` says; `saved_step` is that of its own newest
  /// checkpoint, 0: none. Warns if the previous start ended unexpectedly, and throws where another
  /// start would not help (start_after()). Collective.
  void start(const StartEvent& event, std::int64_t step, std::int64_t saved_step,
             const std::string& config);

  /// The first step of this start is done.
  void on_started(const Startup& startup, std::int64_t step);
  void on_step(const StepRecord& record);
  /// Replicas differed after `step`, and were made the same again.
  void on_healed(std::int64_t step, const std::string& line);
  void on_validation(std::int64_t step, double loss);
  /// The checkpoint `name` of `step` is on the disk.
  void on_saved(std::int64_t step, const std::string& name);
  /// The run ends; `slowest_save` is in seconds. Collective.
  void on_end(RunPhase phase, ExitCode code, const std::string& reason, double slowest_save);

 private:
  void warn_of_sudden_end(const std::optional<RunState>& before) const;
  void warn_of_short_walltime();
  void show_in_tensorboard(const std::function<void(EventFile&)>& write);

  const comm::Communicator& world_;
  const Setup& setup_;
  std::filesystem::path folder_;
  Deadline& deadline_;
  std::filesystem::path metrics_path_;
  std::unique_ptr<MetricsFile> metrics_;  ///< rank 0
  std::unique_ptr<EventFile> events_;     ///< rank 0, with log.tensorboard
  RunState state_;                        ///< rank 0: the content of state.json
  double step_seconds_ = 0;               ///< of the newest step
  Spikes spikes_;
};

}  // namespace llamesh::train
