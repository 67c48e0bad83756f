#pragma once

#include <cstdint>
#include <filesystem>

namespace llamesh::checkpoint {

/// Returns the bytes that a launch of this run can use for memory checkpoints on this host: what is
/// free in /dev/shm, plus the snapshots of earlier launches, which it replaces.
std::int64_t room_for_snapshots(const std::filesystem::path& run_folder);

}  // namespace llamesh::checkpoint
