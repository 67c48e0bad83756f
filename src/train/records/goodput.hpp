#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llamesh::train {

/// A run's time by purpose, in seconds, over all its launches. Time that was not measured is in no
/// part: a pause between two jobs, or the end of a launch that was killed.
struct Goodput {
  double productive = 0;  ///< steps whose result the run still has
  double repeated = 0;    ///< steps that were lost with a launch, and done again
  double saving = 0;      ///< training waited for a checkpoint
  double starting = 0;    ///< from the launch, or from the diagnosis before it, to the first step
  double other = 0;       ///< evaluation, and what else lies between steps
  std::optional<double> diagnosing =
      {};                              ///< from the last step to the diagnosis; empty: none needed
  std::optional<double> waiting = {};  ///< in Slurm's queue; empty: unknown

  /// Returns the parts that are known, by name, in the order above.
  std::vector<std::pair<std::string, double>> parts() const;
  double whole() const;
  /// Returns productive / whole(); empty before anything is measured.
  std::optional<double> share() const;

  bool operator==(const Goodput&) const = default;
};

/// Converts to the object `goodput` in state.json: parts() and `share`.
nlohmann::ordered_json to_json(const Goodput& goodput);
/// Parses it; nothing if a value is no duration.
std::optional<Goodput> parse_goodput(const nlohmann::json& json);

/// Parses the time in state.json, "2026-11-22T12:34:56Z". Returns seconds since 1970.
std::optional<double> parse_utc(const std::string& text);

/// The end of a launch and the launch of the next, in seconds since 1970.
struct Gap {
  bool same_allocation = false;          ///< of Slurm: the job has not been in the queue
  bool has_faulty_rank = false;          ///< the launch ended with a diagnosis
  std::optional<double> last_step = {};  ///< when its last step ended
  std::optional<double> ended = {};      ///< when it wrote why it ended; empty: it was killed
  double launched = 0;                   ///< when the next launch was
};
/// Adds the time between two launches, as far as the run held its nodes.
void add_gap(Goodput& goodput, const Gap& gap);

/// Returns the seconds that this job waited for its nodes, after `from` (seconds since 1970); asks
/// Slurm for up to 15 s. Empty if it does not say, or outside a job.
std::optional<double> time_in_queue(double from);

}  // namespace llamesh::train
