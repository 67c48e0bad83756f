#pragma once

namespace llamesh::comm {

/// Options under the inputs' `mesh:` key; 0 means `auto`.
struct MeshOptions {
  int replicate = 0;  ///< size of the replicate axis; auto: by the strategy
  int shard = 0;      ///< size of the shard axis; auto: by the strategy
  int pipeline = 1;   ///< size of the pipeline axis
  int expert = 1;     ///< size of the expert axis
  int context = 1;    ///< size of the context axis
  int tensor = 1;     ///< size of the tensor axis
  bool allow_expert_across_nodes = false;
  bool allow_tensor_across_nodes = false;
  int ranks_per_node = 0;  ///< splits each machine into logical nodes; auto: one node per machine
};

}  // namespace llamesh::comm
