#pragma once

namespace llamesh::comm {

/// `mesh:` of the inputs; 0 means `auto`.
struct MeshOptions {
  int replicate = 0;  ///< size of the replicate axis; auto: by the strategy
  int shard = 0;      ///< size of the shard axis; auto: by the strategy
  int tensor = 1;     ///< size of the tensor axis
  bool allow_tensor_across_nodes = false;
  int ranks_per_node = 0;  ///< cuts each machine into logical nodes; auto: as the machines are
};

}  // namespace llamesh::comm
