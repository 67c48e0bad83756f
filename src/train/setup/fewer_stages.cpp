#include "train/setup/fewer_stages.hpp"

#include <algorithm>
#include <iterator>

#include "core/error.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {
namespace {

int ranks_within_stage(const comm::MeshOptions& mesh) {
  return mesh.tensor * mesh.context * mesh.expert * std::max(1, mesh.shard);
}

bool fits(const Inputs& in, const comm::Topology& topology) {
  try {
    plan_setup(in, topology);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool has_too_many_stages(const Inputs& in, int ranks) {
  return in.mesh.pipeline > 1 && ranks < in.mesh.pipeline * ranks_within_stage(in.mesh);
}

Inputs with_fewer_stages(const Inputs& in, const comm::Topology& topology) {
  auto fewer = in;
  fewer.pipeline.layers.clear();
  const int ranks = static_cast<int>(std::ssize(topology.node_of));
  for (int stages = ranks / ranks_within_stage(in.mesh); stages > 0; --stages) {
    fewer.mesh.pipeline = stages;
    if (stages == 1) fewer.pipeline.chunks = 1;
    if (fits(fewer, topology)) return fewer;
  }
  return in;
}

}  // namespace llamesh::train
