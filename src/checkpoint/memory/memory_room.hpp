#pragma once

#include <cstdint>
#include <filesystem>

namespace llamesh::checkpoint {

/// Returns the bytes that a start of this run can take for memory checkpoints on this host:
/// /dev/shm's free ones, and those in images of earlier starts, which it replaces.
std::int64_t room_for_images(const std::filesystem::path& run_folder);

}  // namespace llamesh::checkpoint
