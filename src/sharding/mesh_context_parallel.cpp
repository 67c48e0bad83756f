#include "sharding/mesh_context_parallel.hpp"

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {
MeshContextParallel::MeshContextParallel(comm::DeviceMesh::Axis& axis, const Shape& shape)
    : axis_(axis), shape_(shape) {
  expects(shape.tokens % 2 == 0, "rows of {} tokens, which are two pieces", shape.tokens);
  const device::ScopedMemoryTag use(device::MemoryUse::context_parallel);
  const auto bytes = rows() * columns() * size_of(shape.dtype);
  mine_ = device::Buffer(bytes);
  gathered_ = axis.collectives->allocate_gathered((bytes + 63) / 64 * 64);
  ordered_ = device::Buffer(size() * bytes);
  gradients_ = device::Buffer(size() * bytes);
  partials_ = axis.collectives->allocate_symmetric(size() * bytes);
  if (shape.summed > 0)
    sums_ =
        axis.collectives->allocate_symmetric((shape.summed * size_of(DType::f32) + 63) / 64 * 64);
  upload_context_order(compute_, to_sequences_, to_ranks_, size(), shape);
}

void upload_context_order(device::Stream& stream, device::Buffer& to_sequences,
                          device::Buffer& to_ranks, int ranks,
                          const MeshContextParallel::Shape& shape) {
  const auto count = static_cast<std::size_t>(ranks * shape.batch * shape.tokens);
  std::vector<std::int32_t> sequences(count), by_rank(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto positions = model::ContextParallel::positions_of(rank, ranks, shape.tokens);
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t i = 0; i < shape.tokens; ++i) {
        const auto in_sequence = b * ranks * shape.tokens + positions[i];
        const auto in_rank = (rank * shape.batch + b) * shape.tokens + i;
        sequences[static_cast<std::size_t>(in_sequence)] = static_cast<std::int32_t>(in_rank);
        by_rank[static_cast<std::size_t>(in_rank)] = static_cast<std::int32_t>(in_sequence);
      }
  }
  const auto upload = [&](device::Buffer& buffer, const std::vector<std::int32_t>& order) {
    buffer = device::Buffer(std::ssize(order) * size_of(DType::i32));
    device::upload(stream, buffer.tensor(DType::i32, {std::ssize(order)}), order.data());
  };
  upload(to_sequences, sequences);
  upload(to_ranks, by_rank);
}

Tensor MeshContextParallel::matrix(const device::Buffer& buffer, std::int64_t rows) const {
  return buffer.tensor(shape_.dtype, {rows, columns()});
}

model::KeysValues MeshContextParallel::halves(const Tensor& matrix) const {
  return {matrix.slice_cols(0, shape_.key_columns),
          matrix.slice_cols(shape_.key_columns, shape_.value_columns)};
}

model::KeysValues MeshContextParallel::gather(const model::KeysValues& mine,
                                              const Meanwhile& meanwhile) {
  const Tensor packed = matrix(mine_, rows());
  const auto [keys, values] = halves(packed);
  ops::copy(compute_, keys, mine.keys);
  ops::copy(compute_, values, mine.values);
  axis_.collectives->set_subject(context_subject);
  const auto ready = axis_.collectives->all_gather(all(gathered_), packed, compute_.record());
  meanwhile();
  compute_.wait(ready);
  const Tensor ordered = all(ordered_);
  ops::dispatch_tokens(compute_, ordered, all(gathered_),
                       to_sequences_.tensor(DType::i32, {ordered.rows()}));
  return halves(ordered);
}

model::KeysValues MeshContextParallel::gradients(const model::KeysValues& /*mine*/) {
  return halves(all(gradients_));
}

void MeshContextParallel::reduce(const model::KeysValues& mine, const Meanwhile& meanwhile) {
  const Tensor partials = all(partials_), reduced = matrix(mine_, rows());
  ops::dispatch_tokens(compute_, partials, all(gradients_),
                       to_ranks_.tensor(DType::i32, {partials.rows()}));
  axis_.collectives->set_subject(context_subject);
  const auto ready =
      axis_.collectives->reduce_scatter(reduced, partials, Accumulate::no, compute_.record());
  meanwhile();
  compute_.wait(ready);
  const auto [keys, values] = halves(reduced);
  ops::copy(compute_, mine.keys, keys);
  ops::copy(compute_, mine.values, values);
}

void MeshContextParallel::sum(const Tensor& values) {
  const Tensor sums = sums_.tensor(DType::f32, {values.numel()});
  ops::copy(compute_, sums, values);
  axis_.collectives->set_subject("log-probabilities of documents");
  compute_.wait(axis_.collectives->all_reduce(sums, compute_.record()));
  ops::copy(compute_, values, sums);
}

MeshContextParallel::Shape context_shape(const model::ModelConfig& config, int tensor_ranks,
                                         std::int64_t batch, std::int64_t tokens, DType dtype,
                                         std::int64_t summed) {
  // Tensor ranks divide the heads, and share one if they are more.
  const auto heads = std::max<std::int64_t>(1, config.num_key_value_heads / tensor_ranks);
  return {batch, tokens, heads * config.head_dim, heads * config.value_dim(), dtype, summed};
}

std::unique_ptr<model::ContextParallel> make_context_parallel(
    comm::DeviceMesh& mesh, const MeshContextParallel::Shape& shape) {
  const auto& dims = mesh.dims();
  if (dims.group_size(dims.context()) == 1) return std::make_unique<model::WholeSequences>();
  return std::make_unique<MeshContextParallel>(mesh.along(dims.context()), shape);
}

}  // namespace llamesh::sharding
