#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/diagnosis/collective_log.hpp"
#include "comm/mesh/communicator.hpp"
#include "device/hardware.hpp"
#include "train/run/setup.hpp"

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
    comm::AxisSet along;
    std::int64_t collectives;  ///< calls per step
  };
  std::vector<Group> groups;
  std::int64_t checkpoint_bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;  ///< part in which computation waits for collectives
  double tokens_per_second = 0;
  double mfu = 0;  ///< as in metrics.jsonl, relative to the data sheet's peak
};

/// Returns the hardware share of one among `ranks` on a node: a GPU, or part of a CPU node.
device::Hardware share_of_rank(device::Hardware hardware, int ranks);

/// Simulates two steps of the real Engine on `rank`. The second step counts, since pools grow in
/// the first. Needs neither MPI nor data, and does not touch the process's own device. `of_rank` is
/// the rank's hardware; on a CPU it uses train.threads cores. Simulates the first `most`
/// micro-batches and extrapolates the rest from the last one. `log`, if any, receives the rank's
/// calls in both steps and before; its subjects belong to the setup. `expert_imbalance`: rows that
/// the rank receives along an expert axis, relative to their mean, 1 to the axis's size.
StepPlan plan_step(const train::Setup& setup, const device::Hardware& of_rank, int rank = 0,
                   std::int64_t most = 4, comm::CollectiveLog* log = nullptr,
                   double expert_imbalance = 1);

/// Plans the step on the rank with the highest peak memory, the lowest such rank.
StepPlan plan_fullest_rank(const train::Setup& setup, const device::Hardware& hardware,
                           double expert_imbalance = 1);

/// Plans a step's memory on this process's device, whose rates are unknown. `threads` is the rank's
/// thread count.
StepPlan plan_on_this_device(const train::Setup& setup, int rank, int threads);

/// GPU memory that no plan counts, by stated amounts that have not been measured yet.
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
/// host_limit(), or if the rank may not map that much plus the libraries (ulimit -v). Collective.
void check_memory(const comm::Communicator& world, const train::Setup& setup);

}  // namespace llamesh::plan
