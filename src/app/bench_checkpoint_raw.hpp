#pragma once

#include <filesystem>

#include "app/bench_checkpoint_state.hpp"

namespace llamesh::app {

enum class WriteBack : bool { at_the_end, early };

/// One file shared by all ranks, each with its part of it, as a checkpoint has it.
void raw_write(const std::filesystem::path& path, const RandomState& state, int rank,
               WriteBack write_back);
/// Reads this rank's part of it back into the state.
void raw_read(const std::filesystem::path& path, const RandomState& state, int rank);
/// What was written is on the disk already, so the system can forget it.
void drop_from_cache(const std::filesystem::path& path);

}  // namespace llamesh::app
