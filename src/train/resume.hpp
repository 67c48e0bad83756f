#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/manifest.hpp"
#include "comm/communicator.hpp"
#include "train/inputs.hpp"

namespace llamesh::train {

/// Where a run goes on from, given what its inputs say (checkpoint.resume): what it has saved
/// itself in `own_checkpoints` comes first, since a requeued job is started by the same command
/// line and must not begin again where its first start did. Throws a user error when there is
/// something, but the inputs say `none`. Collective.
std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints);

/// Throws a user error unless a run with these inputs goes on with the data exactly where the
/// checkpoint stopped.
void check_continues(const checkpoint::Progress& saved, const Inputs& inputs);

}  // namespace llamesh::train
