#pragma once

#include <cstdint>
#include <string>

namespace llamesh::checkpoint {

/// Who reads the weights of a Hugging Face folder.
enum class ReadBy : std::uint8_t {
  each_rank,  ///< each rank its own ranges: as fast as the disks are together
  rank0,      ///< one rank, which sends them to all: for a slow disk shared by many ranks
};

/// `model.hf`, `model.load_weights` and `model.load` of the inputs.
struct PretrainedOptions {
  std::string hf;             ///< a Hugging Face folder; empty: none
  bool load_weights = false;  ///< whether a run without a checkpoint starts from its weights
  ReadBy load = ReadBy::each_rank;
};

}  // namespace llamesh::checkpoint
