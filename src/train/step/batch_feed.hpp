#pragma once

#include <array>
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
#include "train/step/pair_references.hpp"

namespace llamesh::train {

/// Counts over a step's batches on all ranks.
struct StepCounts {
  std::int64_t tokens;             ///< in the loss
  std::int64_t losses;             ///< these tokens, or pairs: the loss is their mean
  std::int64_t losses_in_replica;  ///< in this rank's replica, if replicas train apart
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
  /// Reads a step's micro-batches and counts what they have. In one collective the ranks agree on
  /// that and on whether reading worked: several ranks may read a bad file.
  StepCounts read_step();
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
  /// Ends the pass over a validation set: returns the number of losses that all ranks have read in
  /// it. Throws if data could not be read. Collective.
  std::int64_t end_validation();

  /// Sets the reference model's log-probabilities, which are 0 until then.
  void use_references(PairReferences references) { references_ = std::move(references); }
  /// Returns the batches per rank that read each pair in a stream (pair_streams()) once.
  std::int64_t reference_batches(std::size_t stream) const {
    return all_pairs_.at(stream).batches();
  }
  /// Reads such batches like read_validation(), up to end_validation().
  std::vector<model::Batch> read_pairs(std::size_t stream, std::int64_t first, std::int64_t count);
  /// Returns the pairs that were read last for validation or by read_pairs(), in order.
  std::vector<data::PairOfBatch> pairs_read() const;

 private:
  std::vector<model::Batch> read(const data::ValidationData& data, std::size_t stream,
                                 std::int64_t first, std::int64_t count);
  void read_batch(const data::ValidationData& data, std::int64_t k, data::TokenBatch& batch);
  data::TokenBatch empty_batch() const;
  void take(data::TokenBatch& batch, const data::TokenBatch& whole) const;
  std::vector<model::Batch> to_device(std::span<data::TokenBatch> batches);
  std::vector<Tensor> tensors(std::span<data::TokenBatch> batches,
                              std::vector<std::int32_t> data::TokenBatch::*values_of,
                              device::Staging& staging) const;
  void add_pairs(std::span<data::TokenBatch> batches, std::vector<model::Batch>& on_device);
  using Counts = std::array<std::int64_t, 2>;  ///< targets, and pairs that no other rank counts
  Counts counts_of(const data::TokenBatch& batch) const;

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
  Counts validated_ = {};          ///< so far
  std::exception_ptr unreadable_;  ///< error in a validation set
  PairReferences references_;
  std::vector<data::ValidationData> all_pairs_;       ///< by stream, if the run trains on pairs
  std::vector<std::vector<float>> numbers_of_pairs_;  ///< by batch: references, tokens
  // For the batches on the device:
  device::Staging ids_, targets_, document_starts_, documents_, pair_numbers_;
};

}  // namespace llamesh::train
