#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

/// What lies in the folder of a run's checkpoints, by its names. What is removed or renamed here
/// is so by the holder of the lease.
namespace llamesh::checkpoint {

/// The step of a committed checkpoint (.../step_00000100), or -1.
std::int64_t step_of(const std::filesystem::path& path);

/// The committed checkpoints of a folder (step_00000100, ...), newest first. Not verified.
std::vector<std::filesystem::path> committed_checkpoints(const std::filesystem::path& folder);

/// What killed saves have left, or is half removed, unless a job holds the lease.
std::vector<std::filesystem::path> debris_in(const std::filesystem::path& folder);
/// Bytes on the disk that it takes.
std::int64_t debris_bytes(const std::filesystem::path& folder);

/// Renames it, and warns: "PATH WHY: ...".
void quarantine_because(const std::filesystem::path& path, std::string_view why);

/// Quarantines checkpoints of later steps: they are of a past from which a run has branched off (it
/// resumed from an earlier one since these are damaged), which must not be resumed from when they
/// read well again.
void quarantine_later_than(const std::filesystem::path& folder, std::int64_t newest);

/// Checkpoints in quarantine that are older than `newest`, or too many.
std::vector<std::filesystem::path> stale_in_quarantine(const std::filesystem::path& folder,
                                                       std::int64_t newest);

/// Warns where it cannot.
void remove_quietly(const std::filesystem::path& path);

/// A half-removed checkpoint must not look like one, so it loses its name first.
void remove_committed(const std::filesystem::path& path);

}  // namespace llamesh::checkpoint
