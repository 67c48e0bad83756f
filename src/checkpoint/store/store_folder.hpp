#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

/// Management of a run's checkpoint folder by file names. Only the lease holder removes and
/// renames.
namespace llamesh::checkpoint {

/// Returns the step of a committed checkpoint (.../step_00000100), or -1.
std::int64_t step_of(const std::filesystem::path& path);

/// Lists the committed checkpoints in a folder (step_00000100, ...), newest first. Not verified.
std::vector<std::filesystem::path> committed_checkpoints(const std::filesystem::path& folder);

/// Lists partial checkpoints: left by killed saves, or half removed. Empty while another job holds
/// the lease.
std::vector<std::filesystem::path> partial_checkpoints_in(const std::filesystem::path& folder);
/// Returns their disk space in bytes.
std::int64_t partial_checkpoint_bytes(const std::filesystem::path& folder);

/// Renames the checkpoint into quarantine and warns: "PATH WHY: ...".
void quarantine_because(const std::filesystem::path& path, std::string_view why);

/// Quarantines checkpoints after step `newest`. The run resumed from an earlier one because these
/// are damaged, and must not resume from them if they become readable again.
void quarantine_later_than(const std::filesystem::path& folder, std::int64_t newest);

/// Returns quarantined checkpoints that are older than `newest` or beyond the limit.
std::vector<std::filesystem::path> stale_in_quarantine(const std::filesystem::path& folder,
                                                       std::int64_t newest);

/// Removes the path; warns if that fails.
void remove_quietly(const std::filesystem::path& path);

/// Removes a checkpoint. Renames it first: a half-removed one must not look complete.
void remove_committed(const std::filesystem::path& path);

}  // namespace llamesh::checkpoint
