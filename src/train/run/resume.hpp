#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/manifest.hpp"
#include "comm/mesh/communicator.hpp"

namespace llamesh::train {

/// Resolves `checkpoint.resume` from the inputs. The run's own checkpoints in `own_checkpoints`
/// take precedence: a requeued job has the same command line and must not begin again where its
/// first start did. Throws a user error if there are some, but the inputs say `none`. Collective.
std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints);

/// Identity of a run's training data and their order.
struct DataOfRun {
  std::uint64_t seed;
  std::string fingerprint;  ///< to_text() of data::Fingerprint
};

/// Compares the training data with those of the checkpoint's run. On a difference, a run that
/// resumes from its own checkpoints (`own`: their folder) throws a user error; a run that starts
/// from another run's checkpoint (`own` is empty) logs a warning. Skips anything that the
/// checkpoint does not record, and everything if its run had not read any data.
void check_data(const checkpoint::TrainState& saved, const DataOfRun& now,
                const std::filesystem::path& own);

}  // namespace llamesh::train
