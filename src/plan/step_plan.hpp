#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh/collective_log.hpp"
#include "comm/mpi/communicator.hpp"
#include "device/hardware.hpp"
#include "device/simulated/simulation.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::plan {

/// One rank's needs for an optimizer step.
struct StepPlan : train::PlannedMemory {
  int rank = 0;                                 ///< world rank
  std::int64_t over_host_link = 0;              ///< bytes copied to and from that memory per step
  std::map<std::string, std::int64_t> traffic;  ///< per axis: bytes sent by the rank
  std::map<std::string, std::int64_t>
      traffic_between_nodes;  ///< the part between nodes, mean over all ranks
  /// Calls in the rank's group along some axes.
  struct Group {
    std::string axis;
    comm::RankGroups along;
    std::int64_t collectives;  ///< calls per step
  };
  std::vector<Group> groups;
  /// An exchange between replicas that train apart (optimizer.outer).
  struct Exchange {
    std::map<std::string, std::int64_t> traffic, traffic_between_nodes;  ///< likewise
    double seconds = 0;
    double exposed_seconds = 0;  ///< in which computation waits for it
  };
  std::optional<Exchange> exchange = {};
  std::int64_t checkpoint_bytes = 0;
  double seconds = 0;          ///< with its share in exchanges
  double exposed_seconds = 0;  ///< part in which computation waits for collectives
  double tokens_per_second = 0;
  double mfu = 0;  ///< as in metrics.jsonl, relative to the data sheet's peak
};

/// Returns the hardware share of one among `ranks` on a node: a GPU, or part of a CPU node.
device::Hardware share_of_rank(device::Hardware hardware, int ranks);

/// Returns the hardware with the kernel rates that whole runs reach (Hardware::attained).
device::Hardware as_attained(device::Hardware hardware);

/// Simulates two steps of the real Engine on `rank`. The second step counts, since pools grow in
/// the first. Needs neither MPI nor data, and does not touch the process's own device. `of_rank` is
/// the rank's hardware; on a CPU it uses train.threads cores. Simulates the first `most`
/// micro-batches (with pipeline stages, at least until each stage alternates between forward and
/// backward passes) and extrapolates the rest from the last one. All stages are simulated side by
/// side, so that `seconds` has the waits of one for the other. `log`, if any, receives the rank's
/// calls in both steps and before; its subjects belong to the setup. `expert_imbalance`: rows that
/// the rank receives along an expert axis, relative to their mean, 1 to the axis's size.
StepPlan plan_step(const train::Setup& setup, const device::Hardware& of_rank, int rank = 0,
                   std::int64_t most = 4, comm::CollectiveLog* log = nullptr,
                   double expert_imbalance = 1);

/// A rank's plan, with its calls.
struct PlannedRank {
  StepPlan plan;
  comm::CollectiveLog log;
};

/// plan_step() of several ranks: the stages of a pipeline are simulated once for all of them.
class PlannedRanks {
 public:
  /// Borrows `setup`; as for plan_step().
  PlannedRanks(const train::Setup& setup, const device::Hardware& of_rank, std::int64_t most = 4,
               double expert_imbalance = 1);
  /// Returns a rank's plan, made at the first call for a rank of its pipeline.
  PlannedRank& operator[](int rank);

 private:
  std::vector<PlannedRank> plan_stages(int rank) const;
  std::vector<PlannedRank> simulate_stages(int rank, std::int64_t micro_batches) const;

  const train::Setup& setup_;
  device::Hardware hardware_;
  std::int64_t most_;
  double expert_imbalance_;
  std::map<int, std::vector<PlannedRank>> pipelines_;  ///< by first rank
};

/// Returns the kernels of rank 0's step on a CPU, in order. `setup` has train.threads.
std::vector<device::KernelCall> kernels_of_step(const train::Setup& setup);

/// Plans the step on the rank with the highest peak memory, the lowest such rank.
StepPlan plan_fullest_rank(const train::Setup& setup, const device::Hardware& hardware,
                           double expert_imbalance = 1);

/// Plans a step's memory on this process's device, whose rates are unknown. `threads` is the rank's
/// thread count.
StepPlan plan_on_this_device(const train::Setup& setup, int rank, int threads);

/// GPU memory outside the plan: assumed amounts that have not been measured yet.
inline constexpr std::int64_t context_bytes = 512 << 20;      ///< CUDA's context
inline constexpr std::int64_t gpu_library_bytes = 512 << 20;  ///< kernels, cuBLASLt, cuDNN forward
inline constexpr std::int64_t nccl_bytes = 1024 << 20;        ///< NCCL's buffers, if ranks > 1

/// Returns the part of `free` bytes, with a context on the GPU, that a step on one of `ranks` may
/// take.
std::int64_t usable_gpu_memory(std::int64_t free, int ranks);
/// Returns a rank's device memory limit: memory.device_limit, else what is usable of the GPU's free
/// memory less cuDNN's scratch, or the rank's share of the machine's memory. Call it before the
/// rank allocates.
std::int64_t device_limit(const train::Setup& setup, int rank);
/// Returns a rank's share of host memory, within cgroup limits.
std::int64_t host_limit(const train::Setup& setup, int rank);

/// Throws a user error with the numbers if a step on any rank would exceed device_limit() or
/// host_limit(), if memory checkpoints do not fit (memory_checkpoint_room.hpp), or if the rank may
/// not map that much plus the libraries (ulimit -v). Collective.
void check_memory(const comm::Communicator& world, const train::Setup& setup);

/// Classes of ranks whose step calls the same collectives and takes the same memory (on a CPU, up
/// to a few bytes for sums of squares). Ranks in a class may still hold different parts of a
/// parameter. With Muon they also send somewhat different numbers of bytes to its matrices' owners.
struct RankClasses {
  std::vector<int> of_rank;  ///< rank -> class
  std::vector<int> first;    ///< class -> its lowest rank
};

/// Classifies ranks by everything that their collectives and memory depend on: their pipeline
/// stage, the number of nodes in each of their groups, and the pieces of partial sums that they
/// must complete (Placement::partial). All else in a ShardedState, an Fsdp and a model has the same
/// size on every rank. Pure.
RankClasses rank_classes(const train::Setup& setup);

/// Returns a separate class for each rank. Pure.
RankClasses every_rank(const train::Setup& setup);

/// Returns candidates for the rank with peak memory: among ranks of a stage with equal node counts
/// per group, the one with the most elements to complete. Pure.
std::vector<int> peak_memory_candidates(const train::Setup& setup);

/// Resolves `sharding.keep_bf16_weights: auto`. bf16 weights are kept if the peak-memory rank's
/// step, which `plan()` plans from the current setup, then takes at most nine tenths of `limit`
/// bytes, or no more than without them. The rest is for memory outside the plan: a GPU's context,
/// NCCL, cuDNN's scratch. Records the choice in the setup's inputs and in a log line, and returns
/// the resulting plan. If there is nothing to choose, it returns `plan()`.
StepPlan plan_bf16_weights(train::Setup& setup, double limit,
                           const std::function<StepPlan()>& plan);

/// Plans the whole run: make_setup(), then `sharding.keep_bf16_weights: auto` against every rank's
/// device memory, all ranks alike. Sets Setup::plan_memory. Collective.
train::Setup make_planned_setup(const comm::Communicator& world, const train::Inputs& inputs);

}  // namespace llamesh::plan
