#include "train/step/gradient_norm.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "optim/optimizer.hpp"

namespace llamesh::train {

GradientNorm::GradientNorm(const comm::Communicator& world, const Setup& setup,
                           const sharding::ShardedState& state)
    : world_(world),
      setup_(setup),
      state_(state),
      replicas_(setup.mesh.group_size(setup.mesh.apart())),
      replica_(setup.mesh.group(setup.mesh.all() & ~setup.mesh.apart(), world.rank())) {}

void GradientNorm::contribute(StepPart& mine) {
  if (!setup_.is_mesh_reproducible()) {
    mine.squared_norm = optim::squared_norm_share(state_);
    return;
  }
  // Magnitudes are ordered as their bits, with NaNs above all others.
  const auto bits = std::bit_cast<std::uint32_t>(optim::largest_gradient(state_)) & 0x7FFFFFFFU;
  const auto largest = std::bit_cast<float>(static_cast<std::uint32_t>(
      world_.max(static_cast<std::int64_t>(bits), "the largest gradient of the step")));
  if (!std::isfinite(largest)) {
    mine.squared_norm = largest;
    return;
  }
  exponent_ = ops::SquareUnits::exponent_above(largest);
  mine.square_units = optim::square_units_share(state_, exponent_);
}

double GradientNorm::of(std::span<const StepPart> parts) const {
  double squared = 0;
  ops::SquareUnits units;
  for (const auto& part : parts) {
    squared += part.squared_norm;
    units += part.square_units;
  }
  return std::sqrt((squared + units.value(exponent_)) / replicas_);
}

double GradientNorm::of_replica(std::span<const StepPart> parts) const {
  if (replicas_ == 1) return of(parts);
  double squared = 0;
  for (const int rank : replica_) squared += parts[static_cast<std::size_t>(rank)].squared_norm;
  return std::sqrt(squared);
}

}  // namespace llamesh::train
