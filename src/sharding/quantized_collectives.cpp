#include "sharding/quantized_collectives.hpp"

#include <utility>
#include <vector>

#include "device/device.hpp"

namespace llamesh::sharding {

using ops::BlockCodes;
using ops::CodeFormat;

namespace {

/// Returns `parts` parts in a buffer.
BlockCodes codes_in(const device::Buffer& buffer, std::int64_t parts, std::int64_t part_numel,
                    CodeFormat format) {
  return {.bytes = buffer.tensor(DType::i8, {parts, BlockCodes::part_bytes(part_numel, format)}),
          .part_numel = part_numel,
          .format = format};
}

/// Returns some of the parts alone.
BlockCodes rows_of(const BlockCodes& codes, std::int64_t first, std::int64_t count) {
  auto rows = codes;
  rows.bytes = codes.bytes.slice_rows(first, count);
  return rows;
}

std::int64_t slice_numel(std::int64_t numel, int ranks) {
  return (numel + ranks - 1) / ranks;
}

}  // namespace

SquareSums::SquareSums()
    : buffer_(2 * BlockCodes::square_sums * size_of(DType::f32)),
      tensor_(buffer_.tensor(DType::f32, {BlockCodes::square_sums, 2})) {}

QuantizationSquares SquareSums::take(device::Stream& stream) {
  std::vector<float> rows(static_cast<std::size_t>(tensor_.numel()));
  device::download(stream, rows.data(), tensor_);
  device::set_bytes(stream, tensor_, 0);
  stream.record().wait();
  QuantizationSquares sums;
  for (std::size_t i = 0; i < rows.size(); i += 2)
    sums += {static_cast<double>(rows[i]), static_cast<double>(rows[i + 1])};
  return sums;
}

QuantizedGather::QuantizedGather(comm::DeviceMesh::Axis& axis, std::int64_t parts,
                                 std::int64_t part_numel, DType dtype, CodeFormat format,
                                 GatherSource source)
    : axis_(axis), parts_(parts), format_(format) {
  if (source == GatherSource::codes && axis_.size == 1) return;
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  const auto bytes = kept_bytes(parts, part_numel);
  if (axis_.collectives->shares_gathered()) {
    if (source == GatherSource::numbers) codes_ = device::Buffer(bytes);
    rounded_ = device::Buffer(parts * part_numel * size_of(dtype));
  } else {
    codes_ = axis_.collectives->allocate_gathered(bytes);
  }
}

std::int64_t QuantizedGather::kept_bytes(std::int64_t parts, std::int64_t part_numel) const {
  return parts * BlockCodes::part_bytes(part_numel, format_);
}

device::Event QuantizedGather::all_gather(const Tensor& whole, const Tensor& mine,
                                          const device::Event& after) {
  auto& stream = axis_.collectives->stream();
  const auto own = own_codes(mine.numel());
  ops::quantize_blocks(stream, own, mine, squares_.tensor());
  return gather(whole, own, after);
}

device::Event QuantizedGather::all_gather_codes(const Tensor& whole, const Tensor& mine,
                                                const device::Event& after) {
  const BlockCodes own{.bytes = mine.reshape({parts_, mine.numel() / parts_}),
                       .part_numel = whole.numel() / axis_.size / parts_,
                       .format = format_};
  if (axis_.size > 1) return gather(whole, own, after);
  auto& stream = axis_.collectives->stream();
  stream.wait(after);
  ops::dequantize_blocks(stream, whole, own);
  return stream.record();
}

/// Returns this rank's codes for the next gather, of parts with this many numbers.
BlockCodes QuantizedGather::own_codes(std::int64_t part_numel) const {
  if (axis_.collectives->shares_gathered()) return codes_in(codes_, parts_, part_numel, format_);
  return rows_of(codes_in(codes_, axis_.size * parts_, part_numel, format_), axis_.rank * parts_,
                 parts_);
}

/// Gathers all ranks' codes from this one's, or, with shared memory, what they stand for.
device::Event QuantizedGather::gather(const Tensor& whole, const BlockCodes& own,
                                      const device::Event& after) {
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  if (collectives.shares_gathered()) {
    const Tensor rounded = rounded_.tensor(whole.dtype(), {whole.numel() / axis_.size});
    ops::dequantize_blocks(stream, rounded, own);
    return collectives.all_gather(whole, rounded, after);
  }
  const auto all = codes_in(codes_, axis_.size * parts_, own.part_numel, format_);
  collectives.all_gather(all.bytes, own.bytes, {});
  stream.wait(after);
  ops::dequantize_blocks(stream, whole, all);
  return stream.record();
}

device::Event QuantizedGather::keep_parts(const Tensor& to, std::int64_t first,
                                          std::int64_t part_numel) {
  auto& stream = axis_.collectives->stream();
  const auto bytes = BlockCodes::part_bytes(part_numel, format_);
  device::copy_bytes(stream, to, codes_.tensor(DType::i8, {to.numel()}, first * bytes));
  return stream.record();
}

QuantizedReduceScatter::QuantizedReduceScatter(comm::DeviceMesh& mesh, comm::AxisSet along,
                                               std::int64_t shard_numel, CodeFormat format)
    : local_(mesh.reductions_along(mesh.innermost_within_node(along))),
      remote_(mesh.reductions_along(along & ~mesh.innermost_within_node(along))),
      format_(format) {
  const device::ScopedMemoryTag use(device::MemoryUse::unsharded_gradients);
  const auto bytes = remote_.size * BlockCodes::part_bytes(shard_numel, format_);
  if (local_.size > 1) sums_ = device::Buffer(remote_.size * shard_numel * size_of(DType::f32));
  sent_ = remote_.collectives->allocate_symmetric(bytes);
  received_ = device::Buffer(bytes);
  remote_.collectives->connect_pairs();
}

void QuantizedReduceScatter::set_subject(const char* subject) {
  local_.collectives->set_subject(subject);
  remote_.collectives->set_subject(subject);
}

/// Returns the node's sums of `numel` numbers for each rank along remote_.
Tensor QuantizedReduceScatter::node_sums(const Tensor& parts, std::int64_t numel,
                                         const device::Event& after) {
  auto& stream = remote_.collectives->stream();
  stream.wait(after);
  if (!sums_) return parts;
  const auto sums = sums_.tensor(DType::f32, {remote_.size * numel});
  auto& local = *local_.collectives;
  local.stream().wait(sums_free_);
  // A call for each node, since its ranks' parts follow one another.
  for (int node = 0; node < remote_.size; ++node)
    stream.wait(local.reduce_scatter(sums.slice(node * numel, numel),
                                     parts.slice(node * numel * local_.size, numel * local_.size),
                                     Accumulate::no, after));
  return sums;
}

device::Event QuantizedReduceScatter::reduce_scatter(const Tensor& mine, const Tensor& parts,
                                                     Accumulate accumulate,
                                                     const device::Event& after) {
  auto& remote = *remote_.collectives;
  const auto codes = [&](const device::Buffer& buffer) {
    return codes_in(buffer, remote_.size, mine.numel(), format_);
  };
  const auto sent = codes(sent_), received = codes(received_);
  ops::quantize_blocks(remote.stream(), sent, node_sums(parts, mine.numel(), after),
                       squares_.tensor());
  sums_free_ = remote.stream().record();
  remote.all_to_all(received.bytes, sent.bytes, {});
  ops::sum_block_parts(remote.stream(), mine, received, accumulate);
  return remote.stream().record();
}

QuantizedAllReduce::QuantizedAllReduce(comm::DeviceMesh::Axis& axis, std::int64_t numel,
                                       std::int64_t exact_numel, CodeFormat format)
    : axis_(axis), format_(format) {
  const device::ScopedMemoryTag use(device::MemoryUse::unsharded_gradients);
  const auto slice = slice_numel(numel, axis_.size);
  const auto bytes = axis_.size * BlockCodes::part_bytes(slice, format_);
  sent_ = axis_.collectives->allocate_symmetric(bytes);
  received_ = device::Buffer(bytes);
  axis_.collectives->connect_pairs();
  sum_ = device::Buffer(slice * size_of(DType::f32));
  if (exact_numel > 0)
    exact_ = axis_.collectives->allocate_symmetric(exact_numel * size_of(DType::f32));
}

device::Event QuantizedAllReduce::all_reduce(const Tensor& data, const device::Event& after,
                                             std::span<const Tensor> exact, const Tensor& error) {
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  const auto slice = slice_numel(data.numel(), axis_.size);
  const auto sent = codes_in(sent_, axis_.size, slice, format_);
  const auto received = codes_in(received_, axis_.size, slice, format_);
  const auto sum = sum_.tensor(DType::f32, {slice});
  stream.wait(after);
  const auto packed = take_out(exact);
  if (error) ops::add(stream, data, error);
  ops::quantize_blocks(stream, sent, data, squares_.tensor());
  if (error) {
    ops::dequantize_blocks(stream, error, sent);
    ops::scaled_difference(stream, error, data, error, 1);
  }
  collectives.all_to_all(received.bytes, sent.bytes, {});
  ops::sum_block_parts(stream, sum, received, Accumulate::no);
  const auto own = rows_of(received, axis_.rank, 1);
  ops::quantize_blocks(stream, own, sum, squares_.tensor());
  if (error) keep_error_of_sum(error, sum, own, data);
  collectives.all_gather(received.bytes, own.bytes, {});
  ops::dequantize_blocks(stream, data, received);
  if (packed) collectives.all_reduce(packed, {});
  put_back(exact, packed);
  return stream.record();
}

/// Moves the parts into a tensor of their own, and leaves zeros, which are rounded to zeros.
Tensor QuantizedAllReduce::take_out(std::span<const Tensor> exact) {
  auto& stream = axis_.collectives->stream();
  std::int64_t numel = 0;
  for (const auto& part : exact) numel += part.numel();
  if (numel == 0) return {};
  const auto packed = exact_.tensor(DType::f32, {numel});
  std::int64_t at = 0;
  for (const auto& part : exact) {
    ops::copy(stream, packed.slice(std::exchange(at, at + part.numel()), part.numel()), part);
    device::set_bytes(stream, part, 0);
  }
  return packed;
}

void QuantizedAllReduce::put_back(std::span<const Tensor> exact, const Tensor& packed) {
  std::int64_t at = 0;
  for (const auto& part : exact)
    ops::copy(axis_.collectives->stream(), part,
              packed.slice(std::exchange(at, at + part.numel()), part.numel()));
}

/// Adds what rounding has left out of this rank's slice of the sum to its errors.
void QuantizedAllReduce::keep_error_of_sum(const Tensor& error, const Tensor& sum,
                                           const BlockCodes& codes, const Tensor& scratch) {
  auto& stream = axis_.collectives->stream();
  const auto first = std::min(error.numel(), axis_.rank * sum.numel());
  const auto count = std::min(error.numel() - first, sum.numel());
  if (count == 0) return;
  const auto left_out = scratch.slice(first, count);
  ops::dequantize_blocks(stream, left_out, codes);
  ops::scaled_difference(stream, left_out, sum.slice(0, count), left_out, 1);
  ops::add(stream, error.slice(first, count), left_out);
}

}  // namespace llamesh::sharding
