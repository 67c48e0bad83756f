#pragma once

#include <cstdint>
#include <string>

namespace llamesh::checkpoint {

/// Ranks that read the weights in a Hugging Face folder.
enum class ReadBy : std::uint8_t {
  each_rank,  ///< each rank reads its own ranges, at the disks' combined speed
  rank0,      ///< rank 0 reads and sends to all: for one slow disk shared by many ranks
};

/// Input keys `model.hf`, `model.load_weights` and `model.load`.
struct PretrainedOptions {
  std::string hf;             ///< Hugging Face folder; empty: none
  bool load_weights = false;  ///< start from its weights if the run has no checkpoint
  ReadBy load = ReadBy::each_rank;
};

}  // namespace llamesh::checkpoint
