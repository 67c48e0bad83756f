#include "sharding/partial_sums.hpp"

#include <algorithm>
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

std::int64_t bytes_of(std::span<const Tensor> pieces) {
  std::int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes();
  return bytes;
}

}  // namespace

PartialSums::PartialSums(const ShardedState& state, comm::DeviceMesh& mesh, When when)
    : state_(state), when_(when) {
  const auto& layout = state.layout();
  const auto axes_of = [&](ParameterId id) { return layout.placement(id).partial; };
  std::map<unsigned long, std::size_t> by_axes;  // every rank creates the groups in the same order
  for (std::size_t p = 0; p < layout.table().parameters.size(); ++p) {
    const auto id = static_cast<ParameterId>(p);
    const auto axes = axes_of(id);
    if (layout.table().parameters[p].frozen) continue;
    if (axes.none() || by_axes.contains(axes.to_ulong())) continue;
    by_axes[axes.to_ulong()] = along_.size();
    along_.push_back({axes, axis_of(layout.placement(id), mesh), {}, {}});
  }
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const auto& piece : layout.pieces(u, state.rank()))
      if (const auto axes = axes_of(piece.parameter); axes.any() && !layout.units()[u].frozen)
        along_[by_axes.at(axes.to_ulong())].pieces.push_back(
            state.gradients().shards[u].slice(piece.offset, piece.count));
  for (auto& sums : along_) {
    std::int64_t bytes = bytes_of(sums.pieces);
    if (when == When::in_each_micro_batch) {
      bytes = 0;
      for (std::size_t u = 0; u < layout.units().size(); ++u)
        bytes = std::max(bytes, numel_in_unit(u, sums.axes) * size_of(DType::f32));
    }
    const device::ScopedMemoryTag use(device::MemoryUse::gradients);
    // All ranks in a group own the same pieces.
    if (bytes > 0) sums.buffer = sums.axis.collectives->allocate_symmetric(bytes);
  }
}

std::int64_t PartialSums::numel_in_unit(std::size_t unit, comm::AxisSet axes) const {
  const auto& layout = state_.layout();
  std::int64_t numel = 0;
  if (layout.holds(unit, state_.rank()))
    for (const auto id : layout.units()[unit].parameters)
      if (layout.placement(id).partial == axes) numel += llamesh::numel(layout.local_shape(id));
  return numel;
}

void PartialSums::complete() {
  if (when_ == When::in_each_micro_batch) return;
  for (auto& sums : along_) {
    if (sums.pieces.empty()) continue;
    add_up(sums, sums.pieces, state_.memory());
    state_.stream().wait(device::compute_stream().record());
  }
}

void PartialSums::complete(std::size_t unit, const Tensor& gradients) {
  if (when_ == When::at_the_end) return;
  const auto& layout = state_.layout();
  for (auto& sums : along_) {
    std::vector<Tensor> pieces;
    for (const auto id : layout.units()[unit].parameters)
      if (layout.placement(id).partial == sums.axes)
        pieces.push_back(
            gradients.slice(layout.place(id).offset, llamesh::numel(layout.local_shape(id))));
    if (!pieces.empty()) add_up(sums, pieces, device::MemoryKind::device);
  }
}

void PartialSums::add_up(Along& sums, std::span<const Tensor> pieces, device::MemoryKind memory) {
  auto& compute = device::compute_stream();
  const bool on_host = memory == device::MemoryKind::host;
  const Tensor all = sums.buffer.tensor(DType::f32, {bytes_of(pieces) / size_of(DType::f32)});
  const auto for_each = [&](auto visit) {
    std::int64_t at = 0;
    for (const auto& piece : pieces) {
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
}

}  // namespace llamesh::sharding
