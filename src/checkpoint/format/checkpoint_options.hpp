#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"

namespace llamesh::checkpoint {

/// Place of frozen weights.
enum class BaseWeights : std::uint8_t {
  reference,  ///< in the Hugging Face folder that the run started from, if there is one
  include,    ///< in every checkpoint
};
inline EnumNames<BaseWeights> enum_names(BaseWeights) {
  using enum BaseWeights;
  return {{{"reference", reference}, {"include", include}}};
}

/// Second copy of a memory checkpoint whose shards no other node holds.
enum class RemoteReplicas : std::uint8_t {
  automatic,  ///< on the next node, sent during the following steps
  off,        ///< none: a lost node's shards come from the newest checkpoint on disk
};
inline EnumNames<RemoteReplicas> enum_names(RemoteReplicas) {
  using enum RemoteReplicas;
  return {{{"auto", automatic}, {"off", off}}};
}

/// Options under `checkpoint.memory`: checkpoints in the nodes' memory, which outlive the processes
/// but not their node.
struct MemoryCheckpointOptions {
  std::int64_t every_steps = 0;  ///< 0: none
  RemoteReplicas partner = RemoteReplicas::automatic;
  std::int64_t limit = 0;  ///< bytes per node; 0: as many as /dev/shm has

  bool enabled() const { return every_steps > 0; }
};

/// Options under the inputs' `checkpoint:` key.
struct CheckpointOptions {
  std::int64_t every_steps = 0;  ///< 0: only at the end of the run
  double every_minutes = 0;      ///< 0: not by time
  std::int64_t keep = 2;         ///< newest checkpoints to keep
  std::int64_t keep_every = 0;   ///< also keep those whose step is a multiple of this; 0: none
  std::int64_t keep_best = 0;    ///< also keep those with the lowest validation losses
  std::string resume =
      "auto";  ///< auto (the newest good one of the run folder), none, or a checkpoint's path
  BaseWeights base = BaseWeights::reference;
  bool async = false;  ///< write while training continues
  MemoryCheckpointOptions memory = {};
  /// Early write-back: writing to disk starts while the file is still being filled
  /// (sync_file_range), so that a local disk is busy during the transfers.
  bool early_write_back = true;
  /// "key=value" hints for the MPI-IO driver, e.g. "striping_factor=16"; drivers ignore unknown
  /// ones.
  std::vector<std::string> mpi_io_hints = {};
};

/// Ranks that read the weights in a Hugging Face folder.
enum class ReadBy : std::uint8_t {
  each_rank,  ///< each rank reads its own ranges, at the disks' combined speed
  rank0,      ///< rank 0 reads and sends to all: for one slow disk shared by many ranks
};
inline EnumNames<ReadBy> enum_names(ReadBy) {
  return {{{"each_rank", ReadBy::each_rank}, {"rank0", ReadBy::rank0}}};
}

/// Input keys `model.hf`, `model.load_weights`, `model.load` and `model.lora.from`.
struct PretrainedOptions {
  std::string hf;             ///< Hugging Face folder; empty: none
  bool load_weights = false;  ///< start from its weights if the run has no checkpoint
  ReadBy load = ReadBy::each_rank;
  std::string adapters = {};  ///< PEFT folder whose adapters the run starts from; empty: none
};

}  // namespace llamesh::checkpoint
