#pragma once

#include <cstdint>
#include <span>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "device/memory_meter.hpp"
#include "ops/ops.hpp"
#include "sharding/quantization_squares.hpp"

/// Collectives whose numbers travel as codes in blocks (ops::BlockCodes), for links between nodes:
/// ZeRO++ (Wang et al. 2023). A number is rounded once on its way to a rank that computes with it,
/// never again at each hop. Results have the same bits in every run and on all ranks that share
/// them; a number that is not finite stays so, with its block.
///
/// Each object has buffers for one call at a time, and its calls run in their order on its axis'
/// stream. Tensors are dense and stay alive until a call's event.
namespace llamesh::sharding {

/// Sums of squares on the device, to which quantize_blocks() adds.
class SquareSums {
 public:
  SquareSums();
  const Tensor& tensor() const { return tensor_; }
  /// Returns the sums since the last call. Waits for the stream, which is the one that adds to
  /// them.
  QuantizationSquares take(device::Stream& stream);

 private:
  device::Buffer buffer_;
  Tensor tensor_;
};

/// Says whether a rank's own part is quantized for a gather or already consists of codes.
enum class GatherSource : bool { numbers, codes };

/// All-gathers numbers as codes.
class QuantizedGather {
 public:
  /// Each rank has this many parts of the whole, each with at most `part_numel` numbers.
  /// Collective; the axis is borrowed.
  QuantizedGather(comm::DeviceMesh::Axis& axis, std::int64_t parts, std::int64_t part_numel,
                  DType dtype, ops::CodeFormat format, GatherSource source);
  /// As Collectives::all_gather(), of one part for each rank, with whole in the constructor's
  /// dtype. This rank's own numbers are rounded like the others: `whole` is the same on all ranks.
  device::Event all_gather(const Tensor& whole, const Tensor& mine, const device::Event& after);
  /// The same from this rank's parts as codes, for GatherSource::codes: the same bits.
  device::Event all_gather_codes(const Tensor& whole, const Tensor& mine,
                                 const device::Event& after);
  /// Copies codes of the last whole to `to`, as many as it has room for, from the part `first` on;
  /// of part_numel numbers each. Must not be called with shared memory or a single rank.
  device::Event keep_parts(const Tensor& to, std::int64_t first, std::int64_t part_numel);
  /// Returns the size of this many parts' codes.
  std::int64_t kept_bytes(std::int64_t parts, std::int64_t part_numel) const;
  QuantizationSquares take_squares() { return squares_.take(axis_.collectives->stream()); }

 private:
  ops::BlockCodes own_codes(std::int64_t part_numel) const;
  device::Event gather(const Tensor& whole, const ops::BlockCodes& own, const device::Event& after);

  comm::DeviceMesh::Axis& axis_;
  std::int64_t parts_;  ///< per rank
  ops::CodeFormat format_;
  device::Buffer codes_;    ///< all parts, or only this rank's if `whole` is shared memory
  device::Buffer rounded_;  ///< with shared memory: this rank's part of `whole`
  SquareSums squares_;
};

/// Reduce-scatters numbers: adds them up on each node first, in full precision, and sends the sums
/// to their ranks on other nodes as int8 or int4.
class QuantizedReduceScatter {
 public:
  /// Along these axes of the mesh, which is borrowed. Collective.
  QuantizedReduceScatter(comm::DeviceMesh& mesh, comm::AxisSet along, std::int64_t shard_numel,
                         ops::CodeFormat format);
  /// As Collectives::reduce_scatter(), of fp32 `mine`, over all ranks along the axes.
  device::Event reduce_scatter(const Tensor& mine, const Tensor& parts, Accumulate accumulate,
                               const device::Event& after);
  /// Returns the stream on which `mine` is written.
  device::Stream& stream() { return remote_.collectives->stream(); }
  void set_subject(const char* subject);
  QuantizationSquares take_squares() { return squares_.take(stream()); }

 private:
  Tensor node_sums(const Tensor& parts, std::int64_t numel, const device::Event& after);

  comm::DeviceMesh::Axis& local_;   ///< the ranks on a node
  comm::DeviceMesh::Axis& remote_;  ///< one rank on each node
  device::Buffer sums_, sent_, received_;
  device::Event sums_free_;
  ops::CodeFormat format_;
  SquareSums squares_;
};

/// All-reduces fp32 numbers: each rank adds up its slice from the others' int8 or int4, and sends
/// the sum to them likewise.
class QuantizedAllReduce {
 public:
  /// `numel`: of the largest tensor, `exact_numel`: of all exact parts of a tensor, at most.
  /// Collective; the axis is borrowed.
  QuantizedAllReduce(comm::DeviceMesh::Axis& axis, std::int64_t numel, std::int64_t exact_numel,
                     ops::CodeFormat format);
  /// As Collectives::all_reduce(). `exact` has views into `data` that are added up in fp32.
  ///
  /// With `error`, of the same size, adds it to `data` first and sets it to what this call's
  /// rounding on this rank has left out, for the next call (error feedback, Karimireddy et al.
  /// 2019).
  device::Event all_reduce(const Tensor& data, const device::Event& after,
                           std::span<const Tensor> exact = {}, const Tensor& error = {});
  QuantizationSquares take_squares() { return squares_.take(axis_.collectives->stream()); }

 private:
  void keep_error_of_sum(const Tensor& error, const Tensor& sum, const ops::BlockCodes& codes,
                         const Tensor& scratch);
  Tensor take_out(std::span<const Tensor> exact);
  void put_back(std::span<const Tensor> exact, const Tensor& packed);

  comm::DeviceMesh::Axis& axis_;
  device::Buffer sent_, received_, sum_, exact_;
  ops::CodeFormat format_;
  SquareSums squares_;
};

}  // namespace llamesh::sharding
