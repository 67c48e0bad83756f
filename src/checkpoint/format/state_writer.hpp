#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

/// Callback that returns the elements in part of a transfer, at most segment_numel. The host can
/// read them until the next call.
using Source = std::function<std::span<const float>(const ShardIo& part)>;

/// Writes state.h5 with all ranks in `world` and syncs it to disk. Each shard is written once,
/// divided among its replicas, directly from its memory (from a GPU through a host copy, a segment
/// at a time), or from `source` if given. Uses early_write_back and mpi_io_hints from the options.
/// Returns the manifest on every rank. On an error anywhere every rank throws, and the file is
/// invalid.
Manifest write_state(const std::filesystem::path& file, const State& state,
                     const TrainState& progress, const comm::Communicator& world,
                     const CheckpointOptions& options, const Source& source = {});

/// Returns the XXH3-64 over all bytes outside the datasets: superblock, object headers, attributes,
/// gaps.
std::uint64_t metadata_hash(const std::filesystem::path& file,
                            const std::vector<DatasetEntry>& datasets);

/// Runs comm::agree() for a phase in which HDF5 itself communicates. If the phase fails on this
/// rank, the other ranks may wait inside HDF5 forever and never reach agree(). So after 5 s this
/// rank prints the error and ends the job (exit 74). The flight record lists the phase as a
/// collective named `kind`, e.g. "opening", so waiting ranks can query the others. Keep pure disk
/// work out of the phase.
void agree_or_abort(const comm::Communicator& world, const char* kind,
                    const std::function<void()>& phase);

}  // namespace llamesh::checkpoint
