#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/h5.hpp"
#include "checkpoint/format/state.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

/// Policy for groups in a checkpoint that the caller did not ask for (e.g. the optimizer's, during
/// generation). Requested groups must always fit in full.
enum class OtherGroups : bool { refuse, ignore };

/// Reads a checkpoint's manifest and checks it and state.h5 outside the datasets. Runs on one
/// process. Throws exit 74 if anything is damaged or missing.
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Throws exit 78 with the dataset's name if one that the state needs is missing or has another
/// shape, or if there is one that the state does not need.
void check_fits(const Manifest& manifest, const State& state, OtherGroups others);

/// Callback that inspects a checkpoint's TrainState, and throws to reject it.
using Accept = std::function<void(const TrainState&)>;

/// Fills every rank's state from the checkpoint, on any mesh. Each rank reads its shards and checks
/// the hashes over all bytes that it uses. If the checkpoint refers to a base model, frozen weights
/// are left as they are. Rank 0 calls `accept`, if given, before anything else is compared or read.
/// Collective. On an error every rank throws (exit 74: damaged; exit 78: does not fit), and the
/// state may be partly overwritten.
TrainState read_state(const std::filesystem::path& checkpoint, const State& state,
                      const comm::Communicator& world, OtherGroups others,
                      const Accept& accept = {});

/// Reads a checkpoint back, with the segments divided among the ranks, and compares hashes: the
/// file system must return the data given to HDF5. Bytes in the page cache are not read from disk.
/// Collective; every rank throws (exit 74) if anything differs.
void verify_written(const std::filesystem::path& checkpoint, const Manifest& manifest,
                    const comm::Communicator& world);

/// Reads the manifest first, then verifies the checkpoint as above.
void verify(const std::filesystem::path& checkpoint, const comm::Communicator& world);

/// Returns all damage in a checkpoint, one line each; empty if every byte is as written. Skips
/// datasets whose names do not begin with `group`. Runs on one process, without MPI.
std::vector<std::string> find_damage(const std::filesystem::path& checkpoint,
                                     std::string_view group = "");

/// Reads a range of a dataset in state.h5, in the range's own order. Reads and checks only segments
/// that overlap it. Runs on one process, without MPI.
void read_range(const h5::File& file, const DatasetEntry& entry, const BoxRange& range,
                std::span<float> values);

/// Reads one whole dataset and checks its hashes: calls visit(begin, values) for element ranges,
/// each element once, in order unless the dataset was split into parts.
void for_each_range(const std::filesystem::path& checkpoint, const DatasetEntry& entry,
                    const std::function<void(std::int64_t, std::span<const float>)>& visit);

}  // namespace llamesh::checkpoint
