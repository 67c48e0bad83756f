#pragma once

#include <cstdint>
#include <functional>

#include "checkpoint/format/manifest.hpp"
#include "comm/mpi/communicator.hpp"
#include "train/step/trainer.hpp"

// The reference model's log-probabilities for a run's pairs. Each stream (pair_streams()) has a
// file beside its first data file, or in the run folder if none can be written there:
// NAME.reference-HASH.npy, a NumPy array of 2 P fp32 (PairReferences). HASH is of the stream's
// tokens and the reference model, so other runs with the same ones find the file.
namespace llamesh::train {

/// Hashes the model whose weights the trainer has, in the precision in which it computes. `frozen`
/// is the hash of its frozen weights. The same on every mesh. Collective.
std::uint64_t hash_of_model(const comm::Communicator& world, const Setup& setup,
                            const Trainer& trainer, std::uint64_t frozen);

/// Gives the trainer the log-probabilities under a model with this hash, whose weights it has: from
/// files that are there, else computed and written. Returns what a checkpoint refers to.
/// Collective.
checkpoint::PairReference find_references(const comm::Communicator& world, const Setup& setup,
                                          Trainer& trainer, std::uint64_t model,
                                          const Trainer::OnProgress& on_progress);

/// Gives the trainer those that a checkpoint refers to. Throws a user error if a file is missing,
/// or does not hold what the run was trained with. Collective.
void restore_references(const comm::Communicator& world, const Setup& setup, Trainer& trainer,
                        const checkpoint::PairReference& saved);

}  // namespace llamesh::train
