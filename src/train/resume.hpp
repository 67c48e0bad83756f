#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/manifest.hpp"
#include "comm/communicator.hpp"

namespace llamesh::train {

/// What a run resumes from, given checkpoint.resume of its inputs: checkpoints of its own in
/// `own_checkpoints` take precedence, since a requeued job has the same command line and must not
/// begin again where its first start did. Throws a user error when there are some, but the inputs
/// say `none`. Collective.
std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints);

/// Identifies a run's training data and their order.
struct DataOfRun {
  std::uint64_t seed;
  std::string fingerprint;  ///< to_text() of data::Fingerprint
};

/// Compares the training data with those of the checkpoint's run. Where they differ, a run that
/// resumes from its own checkpoints (`own`: the folder of this one) throws a user error; one that
/// takes another run's checkpoint (`own` is empty) logs a warning. What the checkpoint does not
/// record is not compared, and nothing is when its run had not read any data.
void check_data(const checkpoint::Progress& saved, const DataOfRun& now,
                const std::filesystem::path& own);

}  // namespace llamesh::train
