#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/manifest.hpp"
#include "comm/communicator.hpp"

namespace llamesh::train {

/// Where a run goes on from, given what its inputs say (checkpoint.resume): what it has saved
/// itself in `own_checkpoints` comes first, since a requeued job is started by the same command
/// line and must not begin again where its first start did. Throws a user error when there is
/// something, but the inputs say `none`. Collective.
std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints);

/// What a run learns from, and in which order.
struct DataOfRun {
  std::uint64_t seed;
  std::string fingerprint;  ///< to_text() of data::Fingerprint
};

/// Compares the training data with those that the checkpoint's run had. Where they differ a run
/// that goes on from its own checkpoints (`own`: the folder of this one) must not, by accident:
/// throws a user error. One that takes another run's checkpoint (`own` is empty) may: it is told as
/// a warning. What the checkpoint does not say of its data is not compared, and nothing is when its
/// run had not seen any yet.
void check_data(const checkpoint::Progress& saved, const DataOfRun& now,
                const std::filesystem::path& own);

}  // namespace llamesh::train
