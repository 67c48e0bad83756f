#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

/// The folder of a run's checkpoints, by the names in it. Only the holder of the lease removes and
/// renames.
namespace llamesh::checkpoint {

/// The step of a committed checkpoint (.../step_00000100), or -1.
std::int64_t step_of(const std::filesystem::path& path);

/// The committed checkpoints of a folder (step_00000100, ...), newest first. Not verified.
std::vector<std::filesystem::path> committed_checkpoints(const std::filesystem::path& folder);

/// Partial checkpoints: left by killed saves, or half removed. Empty while another job holds the
/// lease.
std::vector<std::filesystem::path> partial_checkpoints_in(const std::filesystem::path& folder);
/// The disk space that they take, in bytes.
std::int64_t partial_checkpoint_bytes(const std::filesystem::path& folder);

/// Renames it, and warns: "PATH WHY: ...".
void quarantine_because(const std::filesystem::path& path, std::string_view why);

/// Quarantines checkpoints of later steps: the run resumed from an earlier one because these are
/// damaged, and must not resume from them if they become readable again.
void quarantine_later_than(const std::filesystem::path& folder, std::int64_t newest);

/// Checkpoints in quarantine that are older than `newest`, or too many.
std::vector<std::filesystem::path> stale_in_quarantine(const std::filesystem::path& folder,
                                                       std::int64_t newest);

/// Warns where it cannot.
void remove_quietly(const std::filesystem::path& path);

/// A half-removed checkpoint must not look like a complete one, so it is renamed first.
void remove_committed(const std::filesystem::path& path);

}  // namespace llamesh::checkpoint
