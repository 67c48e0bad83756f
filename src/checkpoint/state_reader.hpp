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

/// Reads and checks the manifest of a checkpoint folder, and that state.h5 outside its datasets is
/// what it says. By one process. Throws exit 74 when something is damaged or missing.
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Throws exit 78, naming it, when a dataset that the state needs is missing or has another shape,
/// or when there is one that nobody asked for.
void check_fits(const Manifest& manifest, const State& state, OtherGroups others);

/// Looks at what a checkpoint says of itself, and throws where it must not be used.
using Accept = std::function<void(const Progress&)>;

/// Fills the state of every rank from the checkpoint, whatever mesh wrote it. Each rank reads what
/// it holds and checks all bytes that it uses against their hashes. Rank 0 asks `accept`, if there
/// is one, before any rank reads. Collective; on an error every rank throws (exit 74: damaged; exit
/// 78: it does not fit), and the state may be partly overwritten.
Progress read_state(const std::filesystem::path& checkpoint, const State& state,
                    const comm::Communicator& world, OtherGroups others, const Accept& accept = {});

/// Reads a checkpoint back, each rank a share of its segments, and compares the hashes: the system
/// gives back what was handed to HDF5. What is still in the page cache is not read from the disk.
/// Collective; every rank throws (exit 74) when something differs.
void verify_written(const std::filesystem::path& checkpoint, const Manifest& manifest,
                    const comm::Communicator& world);

/// The same of a checkpoint whose manifest is not known yet.
void verify(const std::filesystem::path& checkpoint, const comm::Communicator& world);

/// Everything that is wrong with a checkpoint, one line each; empty when every byte is as written.
/// Datasets whose names do not begin with `group` are passed over. By one process, without MPI.
std::vector<std::string> find_damage(const std::filesystem::path& checkpoint,
                                     std::string_view group = "");

/// One whole dataset, its hashes checked: visit(begin, values) for ranges of its elements, each of
/// them once, in order unless it was cut into parts.
void for_each_range(const std::filesystem::path& checkpoint, const DatasetEntry& entry,
                    const std::function<void(std::int64_t, std::span<const float>)>& visit);

}  // namespace llamesh::checkpoint
