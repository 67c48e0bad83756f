#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "checkpoint/checkpoint_options.hpp"
#include "checkpoint/state.hpp"
#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// The elements of a part of a transfer, of at most segment_numel, where the host can read them
/// until the next call.
using Source = std::function<std::span<const float>(const Transfer& part)>;

/// Writes state.h5 with all ranks of `world` and syncs it to the disk. Each shard is written once,
/// a part of it by each replica, directly from its memory (from a GPU through a host copy of a
/// segment at a time), or from `source` where one is given. Returns the manifest, on every rank. Of
/// the options it uses early_write_back and mpi_io_hints. On an error anywhere every rank throws,
/// and the file is invalid.
Manifest write_state(const std::filesystem::path& file, const State& state,
                     const Progress& progress, const comm::Communicator& world,
                     const CheckpointOptions& options, const Source& source = {});

/// XXH3-64 of all bytes of the file outside its datasets: superblock, object headers, attributes,
/// gaps.
std::uint64_t metadata_hash(const std::filesystem::path& file,
                            const std::vector<DatasetEntry>& datasets);

}  // namespace llamesh::checkpoint
