#pragma once

#include <string>
#include <vector>

namespace llamesh {

/// Returns srun and its option --mpi, in one word or two, if the launch command has it.
std::vector<std::string> launcher_of(const std::vector<std::string>& command);

/// Nodes that a job still has.
struct JobNodes {
  std::vector<std::string> usable;  ///< alive as far as Slurm knows
  std::vector<std::string> silent;  ///< do not answer Slurm at the moment, and are not down yet
};

/// The Slurm job in whose batch script this process runs. Queries and controls Slurm through its
/// commands.
class SlurmJob {
 public:
  /// `launcher` is srun, with the options that every launch needs (--mpi); `clean_up` is a shell
  /// command that removes what the job $1 (job_name()) has left in a node's memory.
  /// Throws (exit 78) outside a Slurm job.
  SlurmJob(std::vector<std::string> launcher, std::string clean_up);

  /// Returns the nodes that the job was given, spares included.
  const std::vector<std::string>& nodes() const { return nodes_; }
  int ranks_per_node() const { return ranks_per_node_; }
  /// Returns "job 17".
  std::string name() const { return "job " + id_; }

  /// Returns false if the job was cancelled, or has been requeued. While the controller does
  /// not answer, as during its restart, nobody can say; waits for it up to ten minutes.
  bool runs() const;
  /// Returns the nodes that the job still has, without those that are down.
  JobNodes living_nodes() const;
  /// Tries to launch a program on each node for up to 20 s, and returns the nodes where that fails.
  std::vector<std::string> nodes_without_launch(const std::vector<std::string>& nodes) const;
  /// Kills what is left of earlier launches.
  void end_steps() const;
  /// Kills the guards' steps (guard_command).
  void end_guard() const;
  /// Runs the clean-up command on each living node, for up to 15 s each. Ignores failures.
  void clean_up() const;
  /// Puts the job into the queue again; Slurm then ends this process. Its next launch avoids the
  /// nodes in `excluded`.
  void requeue(const std::vector<std::string>& excluded) const;
  /// Returns the command for a program on `node` that puts the job into the queue again if Slurm
  /// takes the batch node out of the job: with --no-kill the job would stay, without its script,
  /// until the walltime ends. It cleans up first.
  std::vector<std::string> guard_command(const std::string& node) const;

 private:
  void find_restarts();
  std::vector<std::string> launch_on(const std::string& node) const;
  void end_steps(bool guards) const;

  std::vector<std::string> launcher_;
  std::string clean_up_;
  std::string id_;        ///< own_job_id()
  std::string restarts_;  ///< the job runs again under its id once it was in the queue
  std::vector<std::string> nodes_;
  int ranks_per_node_ = 1;
};

}  // namespace llamesh
