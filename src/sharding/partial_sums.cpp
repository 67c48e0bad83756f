#include "sharding/partial_sums.hpp"

#include <map>

#include "device/async_copy.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {

namespace {

/// Returns the ranks over which a gradient is partial. Two stages that share a parameter are
/// neighbors: behind the last stage comes the first.
comm::DeviceMesh::Axis& axis_of(const Placement& placement, comm::DeviceMesh& mesh) {
  const auto pipeline = mesh.dims().pipeline();
  if ((placement.partial & pipeline).none()) return mesh.along(placement.partial);
  expects(placement.partial == pipeline && placement.stages.size() == 2,
          "a gradient that is partial along {}", comm::to_string(placement.partial, mesh.dims()));
  return mesh.pairs_along(pipeline, placement.stages.back(), /*channel=*/0);
}

}  // namespace

PartialSums::PartialSums(const ShardedState& state, comm::DeviceMesh& mesh) : state_(state) {
  const auto& layout = state.layout();
  const auto axes_of = [&](ParameterId id) { return layout.placement(id).partial; };
  std::map<unsigned long, std::size_t> by_axes;  // every rank creates the groups in the same order
  for (std::size_t p = 0; p < layout.table().parameters.size(); ++p) {
    const auto id = static_cast<ParameterId>(p);
    const auto axes = axes_of(id);
    if (layout.table().parameters[p].frozen) continue;
    if (axes.none() || by_axes.contains(axes.to_ulong())) continue;
    by_axes[axes.to_ulong()] = along_.size();
    along_.push_back({axis_of(layout.placement(id), mesh), {}, {}});
  }
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const auto& piece : layout.pieces(u, state.rank()))
      if (const auto axes = axes_of(piece.parameter); axes.any() && !layout.units()[u].frozen)
        along_[by_axes.at(axes.to_ulong())].pieces.push_back(
            state.gradients().shards[u].slice(piece.offset, piece.count));
  for (auto& sums : along_) {
    std::int64_t bytes = 0;
    for (const auto& piece : sums.pieces) bytes += piece.bytes();
    const device::ScopedMemoryTag use(device::MemoryUse::gradients);
    // All ranks in a group own the same pieces.
    if (bytes > 0) sums.buffer = sums.axis.collectives->allocate_symmetric(bytes);
  }
}

void PartialSums::complete() {
  for (auto& sums : along_)
    if (!sums.pieces.empty()) complete(sums);
}

void PartialSums::complete(Along& sums) {
  auto& compute = device::compute_stream();
  const bool on_host = state_.memory() == device::MemoryKind::host;
  const Tensor all = sums.buffer.tensor(DType::f32, {sums.buffer.bytes() / size_of(DType::f32)});
  const auto for_each = [&](auto visit) {
    std::int64_t at = 0;
    for (const auto& piece : sums.pieces) {
      visit(piece, all.slice(at, piece.numel()));
      at += piece.numel();
    }
  };
  for_each([&](const Tensor& piece, const Tensor& packed) {
    if (on_host)
      device::upload_async(compute, packed, piece.data());
    else
      ops::copy(compute, packed, piece);
  });
  sums.axis.collectives->set_subject("partial gradients");
  compute.wait(sums.axis.collectives->all_reduce(all, compute.record()));
  for_each([&](const Tensor& piece, const Tensor& packed) {
    if (on_host)
      device::download_async(compute, piece.data(), packed);
    else
      ops::copy(compute, piece, packed);
  });
  state_.stream().wait(compute.record());
}

}  // namespace llamesh::sharding
