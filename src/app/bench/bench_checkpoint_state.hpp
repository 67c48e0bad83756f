#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/format/state.hpp"
#include "comm/mpi/communicator.hpp"
#include "device/buffer.hpp"
#include "model/description/parameters.hpp"
#include "sharding/shard_layout.hpp"

namespace llamesh::app {

/// Random weights and moments, sharded over all ranks.
class RandomState {
 public:
  /// Allocates about `mebibytes` over all ranks together.
  RandomState(const comm::Communicator& world, std::int64_t mebibytes);
  checkpoint::State state() const { return {layout_, rank_, groups_}; }
  std::byte* data() const { return buffer_.data(); }
  std::int64_t bytes() const { return buffer_.bytes(); }
  std::int64_t checkpoint_bytes() const { return 12 * table_.numel(); }
  std::size_t datasets() const { return 3 * table_.parameters.size(); }

 private:
  void fill() const;

  int rank_;
  model::ParameterTable table_;
  sharding::ShardLayout layout_;
  device::Buffer buffer_;
  std::vector<checkpoint::StateGroup> groups_;
};

enum class WriteBack : bool { at_the_end, early };

/// Writes one file shared by all ranks, each its own part, as in a checkpoint.
void raw_write(const std::filesystem::path& path, const RandomState& state, int rank,
               WriteBack write_back);
/// Reads this rank's part back into the state.
void raw_read(const std::filesystem::path& path, const RandomState& state, int rank);
/// Drops the file from the page cache; its data must be on disk already.
void drop_from_cache(const std::filesystem::path& path);

}  // namespace llamesh::app
