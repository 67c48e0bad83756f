#include "comm/arguments.hpp"

#include <exception>

#include "comm/backoff.hpp"

namespace llamesh::comm {

void check_all_gather(const Collectives& axis, const Tensor& whole, const Tensor& mine) {
  expects(whole.dense() && mine.dense(), "all_gather needs dense tensors");
  expects(whole.numel() == mine.numel() * axis.size(),
          "all_gather of {} elements from {} ranks into {}", mine.numel(), axis.size(),
          whole.numel());
}

void check_reduce_scatter(const Collectives& axis, const Tensor& mine, const Tensor& parts,
                          Accumulate accumulate) {
  expects(mine.dense() && parts.dense(), "reduce_scatter needs dense tensors");
  expects(parts.numel() == mine.numel() * axis.size(),
          "reduce_scatter of {} elements over {} ranks into {}", parts.numel(), axis.size(),
          mine.numel());
  expects(parts.dtype() != DType::i32 &&
              (mine.dtype() == DType::f32 ||
               (mine.dtype() == parts.dtype() && accumulate == Accumulate::no)),
          "reduce_scatter sums fp32 or bf16 into fp32, or bf16 into bf16 without accumulation, not "
          "{} into {}",
          name_of(parts.dtype()), name_of(mine.dtype()));
  expects(mine.data() != parts.data() || mine.numel() == 0 ||
              (axis.size() == 1 && accumulate == Accumulate::no && parts.dtype() == DType::f32),
          "reduce_scatter in place needs one rank, fp32 and no accumulation");
}

void check_all_reduce(const Tensor& data) {
  expects(data.dense() && data.dtype() == DType::f32, "all_reduce needs a dense fp32 tensor");
}

void check_broadcast(const Collectives& axis, const Tensor& data, int root) {
  expects(data.dense(), "broadcast needs a dense tensor");
  expects(root >= 0 && root < axis.size(), "broadcast from rank {} of {}", root, axis.size());
}

std::int64_t all_gather_bytes(const Tensor& whole, int size) {
  return whole.bytes() / size * (size - 1);
}

std::int64_t reduce_scatter_bytes(const Tensor& parts, int size) {
  return parts.bytes() / size * (size - 1);
}

std::int64_t all_reduce_bytes(const Tensor& data, int size) {
  return 2 * data.bytes() * (size - 1) / size;
}

std::int64_t broadcast_bytes(const Collectives& axis, const Tensor& data, int root) {
  return axis.rank() == root && axis.size() > 1 ? data.bytes() : 0;
}

void finish(device::Stream& stream) {
  if (std::uncaught_exceptions() > 0) stop_waiting();
  stream = device::Stream::calling_thread();
}

}  // namespace llamesh::comm
