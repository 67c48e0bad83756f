#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state.hpp"
#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// Whether a checkpoint may hold groups that are not asked for (the optimizer's, for generation).
/// Within the groups asked for everything must fit in either case.
enum class OtherGroups : bool { refuse, ignore };

/// Reads and checks the manifest of a checkpoint folder, and state.h5 outside its datasets against
/// it. By one process. Throws exit 74 when something is damaged or missing.
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Throws exit 78, naming it, when a dataset that the state needs is missing or has another shape,
/// or when there is one that the state does not need.
void check_fits(const Manifest& manifest, const State& state, OtherGroups others);

/// Inspects a checkpoint's Progress, and throws where it must not be used.
using Accept = std::function<void(const Progress&)>;

/// Fills the state of every rank from the checkpoint, on any mesh. Each rank reads its shards and
/// checks all bytes that it uses against their hashes. Rank 0 calls `accept`, if there is one,
/// before any rank reads. Collective; on an error every rank throws (exit 74: damaged; exit 78: it
/// does not fit), and the state may be partly overwritten.
Progress read_state(const std::filesystem::path& checkpoint, const State& state,
                    const comm::Communicator& world, OtherGroups others, const Accept& accept = {});

/// Reads a checkpoint back, each rank a share of its segments, and compares the hashes: this
/// verifies what was passed to HDF5 as the file system returns it. Bytes in the page cache are not
/// read from the disk. Collective; every rank throws (exit 74) when something differs.
void verify_written(const std::filesystem::path& checkpoint, const Manifest& manifest,
                    const comm::Communicator& world);

/// The same for a checkpoint whose manifest has not been read.
void verify(const std::filesystem::path& checkpoint, const comm::Communicator& world);

/// All damage of a checkpoint, one line each; empty when every byte is as written. Datasets whose
/// names do not begin with `group` are skipped. By one process, without MPI.
std::vector<std::string> find_damage(const std::filesystem::path& checkpoint,
                                     std::string_view group = "");

/// The elements of a part of a dataset, in the part's own order. The hash of every segment that has
/// some of them is checked; the others are not read. By one process, without MPI.
void read_part(const std::filesystem::path& checkpoint, const DatasetEntry& entry, const Box& part,
               std::span<float> values);

/// One whole dataset, its hashes checked: visit(begin, values) for ranges of its elements, each of
/// them once, in order unless it was cut into parts.
void for_each_range(const std::filesystem::path& checkpoint, const DatasetEntry& entry,
                    const std::function<void(std::int64_t, std::span<const float>)>& visit);

}  // namespace llamesh::checkpoint
