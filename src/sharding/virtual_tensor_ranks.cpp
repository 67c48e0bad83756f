#include "sharding/virtual_tensor_ranks.hpp"

#include "core/error.hpp"
#include "ops/ops.hpp"
#include "sharding/mesh_tensor_parallel.hpp"

namespace llamesh::sharding {

VirtualTensorRanks::VirtualTensorRanks(comm::DeviceMesh::Axis& axis, Turns& turns, int count,
                                       const TensorOptions& options, std::int64_t rows,
                                       std::int64_t hidden, DType dtype)
    : axis_(axis),
      turns_(turns),
      count_(count),
      residual_(options.residual),
      dtype_(dtype),
      sum_dtype_(dtype_of_sums(dtype)) {
  const device::ScopedMemoryTag use(device::MemoryUse::tensor_parallel);
  const auto numel = rows * hidden;
  const auto bytes = numel * size_of(dtype), sum_bytes = numel * size_of(sum_dtype_);
  for (int turn = 0; turn < count; ++turn) {
    members_.emplace_back(*this, turn);
    partials_.emplace_back(bytes);
  }
  if (residual_ != ResidualLayout::whole)
    for (auto& buffer : gathered_) buffer = device::Buffer(bytes);
  if (residual_ == ResidualLayout::hidden) parts_ = device::Buffer(sum_bytes);
  for (int added = count; added > 0; added /= 2) sums_.emplace_back(sum_bytes);
  sum_ = device::Buffer(sum_bytes);
}

model::TensorParallel::MatrixSize VirtualTensorRanks::Member::residual(MatrixSize whole) const {
  const auto by_rows = all_.parts_by(ResidualLayout::sequence);
  const auto by_columns = all_.parts_by(ResidualLayout::hidden);
  expects(whole.rows % by_rows == 0 && whole.cols % by_columns == 0,
          "({}, {}) among {} virtual ranks", whole.rows, whole.cols, size());
  return {whole.rows / by_rows, whole.cols / by_columns};
}

Tensor VirtualTensorRanks::own_part(int turn, const Tensor& like) {
  const auto bytes = like.bytes() * count_;
  if (own_.bytes() < bytes) own_ = device::Buffer(bytes);
  return own_.tensor(like.dtype(), {like.numel()}, turn * like.bytes());
}

/// Sets `all` to what the virtual ranks have in own_part() like `mine`.
void VirtualTensorRanks::exchange(const Tensor& all, const Tensor& mine) {
  const Tensor own = own_.tensor(mine.dtype(), {count_ * mine.numel()});
  axis_.collectives->set_subject("activations");
  compute_.wait(axis_.collectives->all_gather(all, own, compute_.record()));
}

/// Returns a matrix in the buffer that all virtual ranks have parts like `mine` in.
Tensor VirtualTensorRanks::matrix_in(const device::Buffer& buffer, const Tensor& mine,
                                     DType dtype) const {
  return buffer.tensor(dtype, {parts_by(ResidualLayout::sequence) * mine.rows(),
                               parts_by(ResidualLayout::hidden) * mine.cols()});
}

model::TensorParallel::Gathered VirtualTensorRanks::gather(int turn, const Tensor& mine) {
  if (residual_ == ResidualLayout::whole) return {mine, {}};
  ops::copy(compute_, own_part(turn, mine), mine.reshape({mine.numel()}));
  meet(turn, [&] {
    next_ = (next_ + 1) % gathered_.size();
    const auto& buffer = residual_ == ResidualLayout::hidden ? parts_ : gathered_[next_];
    const Tensor all = buffer.tensor(dtype_, {size() * mine.numel()});
    exchange(all, mine);
    if (residual_ == ResidualLayout::hidden)
      copy_columns(compute_, matrix_in(gathered_[next_], mine, dtype_), all, size(),
                   ColumnCopy::to_matrix);
  });
  return {matrix_in(gathered_[next_], mine, dtype_), {}};
}

Tensor VirtualTensorRanks::partial(int turn, const Tensor& mine) {
  return matrix_in(partials_[static_cast<std::size_t>(turn)], mine, dtype_);
}

/// Sets sums_[level] to the sum over `count` turns from `first` on.
void VirtualTensorRanks::add_up(const Tensor& mine, int first, int count, std::size_t level) {
  const Tensor sum = matrix_in(sums_[level], mine, sum_dtype_);
  if (count == 1) return ops::copy(compute_, sum, partial(first, mine));
  add_up(mine, first, count / 2, level);
  add_up(mine, first + count / 2, count / 2, level + 1);
  ops::add(compute_, sum, matrix_in(sums_[level + 1], mine, sum_dtype_));
}

device::Event VirtualTensorRanks::reduce(int turn, const Tensor& mine) {
  const bool is_whole = residual_ == ResidualLayout::whole;
  meet(turn, [&] {
    add_up(mine, 0, count_, 0);
    Tensor sum = matrix_in(sums_.front(), mine, sum_dtype_);
    if (residual_ == ResidualLayout::hidden) {
      const Tensor parts = parts_.tensor(sum_dtype_, {sum.numel()});
      copy_columns(compute_, sum, parts, size(), ColumnCopy::to_parts);
      sum = parts;
    }
    sum = sum.reshape({sum.numel()});
    auto& collectives = *axis_.collectives;
    collectives.set_subject("activations");
    const auto own = is_whole ? mine.numel() : count_ * mine.numel();
    const Tensor result = sum_.tensor(sum_dtype_, {own});
    compute_.wait(is_whole
                      ? collectives.all_reduce(result, sum, compute_.record())
                      : collectives.reduce_scatter(result, sum, Accumulate::no, compute_.record()));
  });
  const auto first = is_whole ? 0 : turn * mine.numel();
  ops::copy(compute_, mine.reshape({mine.numel()}),
            sum_.tensor(sum_dtype_, {mine.numel()}, first * size_of(sum_dtype_)));
  return {};
}

device::Event VirtualTensorRanks::all_gather(int turn, const Tensor& all, const Tensor& mine) {
  ops::copy(compute_, own_part(turn, mine), mine.reshape({mine.numel()}));
  meet(turn, [&] {
    if (all_.bytes() < all.bytes()) all_ = device::Buffer(all.bytes());
    exchange(all_.tensor(all.dtype(), {all.numel()}), mine);
  });
  ops::copy(compute_, all.reshape({all.numel()}), all_.tensor(all.dtype(), {all.numel()}));
  return {};
}

}  // namespace llamesh::sharding
