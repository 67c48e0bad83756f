#pragma once

#include <cstdint>

#include "comm/mesh/communicator.hpp"

namespace llamesh::comm {

/// Values for `--device`. automatic: GPUs if every rank sees one, the CPU if none does.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Chooses this process's device. On GPUs, the index is the rank's local rank among those on its
/// machine that see the same GPUs, so the launcher may show each rank all GPUs, only its own, or
/// those near its cores. Refuses two ranks on one GPU (LLAMESH_SHARE_GPU=1 allows it, for tests),
/// and a job in which only some ranks see a GPU, or in which a driver fails to list its
/// GPUs. Must be called before any buffer or stream is
/// created. Collective.
void choose_device(const Communicator& world, DeviceChoice choice);

}  // namespace llamesh::comm
