#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "device/hardware.hpp"
#include "device/memory_meter.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// What one rank takes for an optimizer step. Bytes are those of its device, and counted as in
/// metrics.jsonl.
struct StepPlan {
  std::int64_t valley = 0;  ///< bytes in use at the end of the passes
  std::int64_t peak = 0;    ///< the most within the step
  device::MemoryByUse at_peak{};
  std::int64_t host_bytes = 0;                  ///< of pinned host memory, beside a GPU
  std::map<std::string, std::int64_t> traffic;  ///< by axis: bytes sent by the rank
  std::map<std::string, std::int64_t> traffic_between_nodes;  ///< of these, mean over all ranks
  std::int64_t checkpoint_bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;  ///< of them, in which computation waits for collectives
  double tokens_per_second = 0;
  double mfu = 0;  ///< as in metrics.jsonl, over the data sheet's peak
};

/// The share of the hardware that one of `ranks` of a node gets: a GPU, or a part of a CPU node.
device::Hardware share_of_rank(device::Hardware hardware, int ranks);

/// Takes two steps of `rank` on a simulated device by the engine itself: sharded state, Fsdp, model
/// and optimizer as in Trainer. The second one counts, since pools grow in the first. Needs neither
/// MPI nor data, and changes nothing of the process's own device. `hardware` is that of a rank.
StepPlan plan_step(const Setup& setup, const device::Hardware& hardware, int rank = 0);

}  // namespace llamesh::train
