#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "data/loader.hpp"
#include "data/validation.hpp"
#include "device/async_copy.hpp"
#include "model/causal_lm.hpp"
#include "model/layers/context_parallel.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Valid targets of a step: over all ranks, and over those of this rank's replica, if replicas
/// train apart.
struct ValidTokens {
  std::int64_t all, in_replica;
};

/// A rank's training and validation batches, on the model's device. With a context axis they have
/// the tokens of whole sequences that are this rank's.
class BatchFeed {
 public:
  /// Borrows all arguments.
  BatchFeed(const comm::Communicator& world, const Setup& setup, const comm::DeviceMesh& mesh,
            const model::ContextParallel& context);

  /// Starts reading the training data that follow step `step`.
  void start_after(std::int64_t step);
  /// Reads a step's micro-batches and returns the number of valid targets. In one collective the
  /// ranks agree on that and on whether reading worked: several ranks may read a bad file.
  ValidTokens read_step();
  /// Returns the seconds for which the last read_step() waited for other ranks.
  double seconds_waited() const { return seconds_waited_; }
  /// Copies the step's micro-batches to the model's device. On a GPU the next copy overwrites them,
  /// in the compute stream, after the work on them.
  std::vector<model::Batch> micro_batches() { return to_device(micro_batches_); }

  /// Returns the batches per rank in a validation set (Inputs::validation_sets()).
  std::int64_t validation_batches(std::size_t set) const { return validation_.at(set).batches(); }
  /// Reads the batches [first, first + count) of a validation set and copies them likewise.
  std::vector<model::Batch> read_validation(std::size_t set, std::int64_t first,
                                            std::int64_t count);
  /// Ends the pass over a validation set: returns the number of valid targets that all ranks have
  /// read in it. Throws if data could not be read. Collective.
  std::int64_t end_validation();

 private:
  void read_validation_batch(std::size_t set, std::int64_t k, data::TokenBatch& batch);
  data::TokenBatch empty_batch() const;
  void take(data::TokenBatch& batch, const data::TokenBatch& whole) const;
  std::vector<model::Batch> to_device(std::span<data::TokenBatch> batches);

  const comm::Communicator& world_;
  const Setup& setup_;
  const comm::DeviceMesh& mesh_;
  const model::ContextParallel& context_;
  std::vector<int> data_ranks_;     ///< world ranks that read different data
  std::vector<int> replica_ranks_;  ///< those whose gradients add up
  std::optional<data::Loader> loader_;
  std::vector<data::TokenBatch> micro_batches_;  ///< for the current step
  double seconds_waited_ = 0;
  std::vector<data::ValidationData> validation_;  ///< a set each
  std::vector<data::TokenBatch> validation_batches_;
  std::int64_t validated_ = 0;                       ///< valid targets so far
  std::exception_ptr unreadable_;                    ///< error in a validation set
  device::Staging ids_, targets_, document_starts_;  ///< for the batches on the device
};

}  // namespace llamesh::train
