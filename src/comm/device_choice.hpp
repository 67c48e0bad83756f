#pragma once

#include <cstdint>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// `--device`. automatic: GPUs where every rank sees one, else the CPU where none does.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Chooses this process's device: on GPUs the one whose number is the rank's place among the ranks
/// of its machine that see the same GPUs, so it does not matter whether the launcher shows each
/// rank all of them, only its own, or those near its cores. Two ranks on one GPU are refused (set
/// LLAMESH_SHARE_GPU=1 to test that way), and so is a job of which some ranks see a GPU and others
/// do not. Comes before any buffer or stream is made. Collective.
void choose_device(const Communicator& world, DeviceChoice choice);

}  // namespace llamesh::comm
