#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/format/manifest.hpp"
#include "comm/mpi/communicator.hpp"
#include "model/description/model_config.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Resolves `checkpoint.resume` from the inputs. The run's own checkpoints in `own_checkpoints`
/// take precedence: a requeued job has the same command line and must not begin again where its
/// first launch did. Throws a user error if there are some, but the inputs say `none`. Collective.
std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints);

/// Identity of a run's training data and their order.
struct DataOfRun {
  std::uint64_t seed;
  std::string fingerprint;  ///< to_text() of data::Fingerprint
};

/// Checkpoints of the run that continues.
struct OwnRun {
  std::filesystem::path checkpoints;
  std::int64_t step_on_disk;  ///< from which another run can start; -1: only memory has some
};

/// Compares the model, resolved, with that of the checkpoint's run. If the weights mean something
/// else in it, a run that resumes from its own checkpoints throws a user error. A run that starts
/// from another run's checkpoint (without `own`) logs a warning, but throws as well if the weights
/// do not fit. Skips a checkpoint that does not record its model.
void check_model(const checkpoint::TrainState& saved, const model::ModelConfig& now,
                 const std::optional<OwnRun>& own);

/// Warns if the checkpoint's steps were computed by another build, on another kind of CPU or by
/// other tensor or context ranks (arithmetic_of): later steps then differ in their last bits from
/// those that would have followed there.
void warn_of_other_arithmetic(const checkpoint::TrainState& saved, const Inputs& in);

/// Throws a user error if the training data are not those of the checkpoint's run. Skips anything
/// that the checkpoint does not record.
void require_data(const checkpoint::TrainState& saved, const DataOfRun& now);

/// Compares the training data with those of the checkpoint's run. On a difference, a run that
/// resumes from its own checkpoints throws a user error; a run that starts from another run's
/// checkpoint (without `own`) logs a warning. Skips anything that the checkpoint does not record,
/// and everything if its run had not read any data.
void check_data(const checkpoint::TrainState& saved, const DataOfRun& now,
                const std::optional<OwnRun>& own);

}  // namespace llamesh::train
