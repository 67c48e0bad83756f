#pragma once

#include <cstdint>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// `--device`. automatic: GPUs where every rank sees one, else the CPU where none does.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Chooses this process's device: on GPUs the one whose index is the rank's local rank among those
/// of its machine that see the same GPUs, so the launcher may show each rank all of them, only its
/// own, or those near its cores. Two ranks on one GPU are refused (LLAMESH_SHARE_GPU=1 allows it,
/// for tests), and so is a job of which some ranks see a GPU and others do not. Must be called
/// before any buffer or stream is created. Collective.
void choose_device(const Communicator& world, DeviceChoice choice);

}  // namespace llamesh::comm
