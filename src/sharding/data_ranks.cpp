#include "sharding/data_ranks.hpp"

#include "device/stream.hpp"

namespace llamesh::sharding {

model::DataRanks data_ranks(comm::DeviceMesh& mesh) {
  const auto axes = mesh.dims().gradient_axes();
  const int count = mesh.dims().group_size(axes);
  if (count == 1) return {};
  auto& collectives = *mesh.along(axes).collectives;
  return {.count = count,
          .sum =
              [&collectives](const Tensor& sums) {
                collectives.set_subject("expert balance");
                return collectives.all_reduce(sums, device::compute_stream().record());
              },
          .allocate =
              [&collectives](std::int64_t bytes) {
                const device::ScopedMemoryTag use(device::MemoryUse::expert_parallel);
                return collectives.allocate_symmetric(bytes);
              }};
}

}  // namespace llamesh::sharding
