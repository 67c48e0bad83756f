#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/collective_log.hpp"
#include "comm/communicator.hpp"
#include "device/hardware.hpp"
#include "device/memory_meter.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// What one rank takes for an optimizer step. Bytes are those of its device, and counted as in
/// metrics.jsonl.
struct StepPlan {
  int rank = 0;             ///< in the world
  std::int64_t valley = 0;  ///< bytes in use at the end of the passes
  std::int64_t peak = 0;    ///< the most within the step
  device::MemoryByUse at_peak{};
  std::int64_t on_host = 0;                     ///< bytes in host memory, beside the device's
  std::int64_t over_host_link = 0;              ///< bytes copied from and to that memory in a step
  std::map<std::string, std::int64_t> traffic;  ///< by axis: bytes sent by the rank
  std::map<std::string, std::int64_t> traffic_between_nodes;  ///< of these, mean over all ranks
  /// Of the rank in its group along some axes.
  struct Group {
    std::string axis;
    comm::AxisSet along;
    std::int64_t collectives;  ///< that it calls
  };
  std::vector<Group> groups;
  std::int64_t checkpoint_bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;  ///< of them, in which computation waits for collectives
  double tokens_per_second = 0;
  double mfu = 0;  ///< as in metrics.jsonl, over the data sheet's peak
};

/// "weights 3.7 MiB, gradients 3.7 MiB, ...", what is below a MiB left out.
std::string describe(const device::MemoryByUse& bytes);

/// The share of the hardware that one of `ranks` of a node gets: a GPU, or a part of a CPU node.
device::Hardware share_of_rank(device::Hardware hardware, int ranks);

/// Takes two steps of `rank` on a simulated device by the engine itself: sharded state, Fsdp, model
/// and optimizer as in Trainer. The second one counts, since pools grow in the first. Needs neither
/// MPI nor data, and changes nothing of the process's own device. `of_rank` is the rank's hardware;
/// of a CPU's cores it uses train.threads. Of more than `most` micro-batches the others are counted
/// like the last of these. `log`, if any, gets what the rank calls in both steps and before; its
/// subjects are those of the setup.
StepPlan plan_step(const Setup& setup, const device::Hardware& of_rank, int rank = 0,
                   std::int64_t most = 4, comm::CollectiveLog* log = nullptr);

/// The same of the rank that takes the most memory at its peak, the lowest such one.
StepPlan plan_fullest_rank(const Setup& setup, const device::Hardware& hardware);

/// The memory of a step on the device of this process, of which no rates are known.
/// `threads` are those of the rank.
StepPlan plan_on_this_device(const Setup& setup, int rank, int threads);

/// What a rank may take: memory.device_limit, else the GPU's memory, or its part of the machine's.
std::int64_t device_limit(const Setup& setup, int rank);
/// A rank's part of its host's memory, of which cgroups may allow less than there is.
std::int64_t host_limit(const Setup& setup, int rank);

/// Throws a user error with the numbers where a step of any rank would take more than
/// device_limit() or host_limit(), or may not map as much as that takes with the libraries
/// (ulimit -v). Collective.
void check_memory(const comm::Communicator& world, const Setup& setup);

}  // namespace llamesh::train
