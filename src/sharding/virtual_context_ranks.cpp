#include "sharding/virtual_context_ranks.hpp"

#include "device/memory_meter.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {

VirtualContextRanks::VirtualContextRanks(comm::DeviceMesh::Axis& axis, Turns& turns,
                                         const VirtualRanks& ranks,
                                         const MeshContextParallel::Shape& shape)
    : axis_(axis),
      turns_(turns),
      ranks_(ranks),
      shape_(shape),
      sum_dtype_(dtype_of_sums(shape.dtype)) {
  const device::ScopedMemoryTag use(device::MemoryUse::context_parallel);
  const auto mine = rows() * columns(), all = size() * mine;
  const auto bytes = size_of(shape.dtype);
  for (int turn = 0; turn < ranks.count(); ++turn) {
    members_.emplace_back(*this, turn);
    gradients_.emplace_back(all * bytes);
    if (shape.summed > 0) sums_of_values_.emplace_back(shape.summed * size_of(DType::f32));
  }
  for (int tensor = 0; tensor < ranks.tensor; ++tensor)
    groups_.push_back({device::Buffer(ranks.context * mine * bytes), device::Buffer(all * bytes)});
  exchanged_ = device::Buffer(all * bytes);
  for (int added = ranks.context; added > 0; added /= 2)
    sums_.emplace_back(all * size_of(sum_dtype_));
  sum_ = device::Buffer(ranks.context * mine * size_of(sum_dtype_));
  upload_context_order(compute_, to_sequences_, to_ranks_, size(), shape);
}

/// Returns where a turn's rows are exchanged.
Tensor VirtualContextRanks::own_rows(int turn) const {
  const auto& own = groups_[static_cast<std::size_t>(ranks_.tensor_of(turn))].own;
  return matrix(own, ranks_.context * rows(), shape_.dtype)
      .slice_rows(ranks_.context_of(turn) * rows(), rows());
}

Tensor VirtualContextRanks::gradients(int turn) const {
  return matrix(gradients_[static_cast<std::size_t>(turn)], size() * rows(), shape_.dtype);
}

model::KeysValues VirtualContextRanks::gather(int turn, const model::KeysValues& mine,
                                              const Meanwhile& meanwhile) {
  auto& group = groups_[static_cast<std::size_t>(ranks_.tensor_of(turn))];
  const auto [keys, values] = halves(own_rows(turn));
  ops::copy(compute_, keys, mine.keys);
  ops::copy(compute_, values, mine.values);
  meanwhile();
  const Tensor ordered = matrix(group.ordered, size() * rows(), shape_.dtype);
  const auto together = [&] {
    const Tensor all = matrix(exchanged_, size() * rows(), shape_.dtype);
    axis_.collectives->set_subject(context_subject);
    compute_.wait(axis_.collectives->all_gather(
        all, matrix(group.own, ranks_.context * rows(), shape_.dtype), compute_.record()));
    ops::dispatch_tokens(compute_, ordered, all,
                         to_sequences_.tensor(DType::i32, {ordered.rows()}));
  };
  turns_.meet(is_last(turn) ? together : Meanwhile());
  return halves(ordered);
}

/// Sets sums_[level] to the sum over the gradients of `count` turns, rank by rank.
void VirtualContextRanks::add_up(int tensor, int first, int count, std::size_t level) {
  const Tensor sum = matrix(sums_[level], size() * rows(), sum_dtype_);
  if (count == 1) {
    const Tensor by_rank = matrix(exchanged_, size() * rows(), shape_.dtype);
    ops::dispatch_tokens(compute_, by_rank, gradients(first * ranks_.tensor + tensor),
                         to_ranks_.tensor(DType::i32, {by_rank.rows()}));
    return ops::copy(compute_, sum, by_rank);
  }
  add_up(tensor, first, count / 2, level);
  add_up(tensor, first + count / 2, count / 2, level + 1);
  ops::add(compute_, sum, matrix(sums_[level + 1], size() * rows(), sum_dtype_));
}

void VirtualContextRanks::reduce(int turn, const model::KeysValues& mine,
                                 const Meanwhile& meanwhile) {
  meanwhile();
  const int tensor = ranks_.tensor_of(turn);
  const auto together = [&] {
    add_up(tensor, 0, ranks_.context, 0);
    const auto own = ranks_.context * rows();
    const Tensor sum = matrix(sum_, own, sum_dtype_);
    axis_.collectives->set_subject(context_subject);
    compute_.wait(
        axis_.collectives->reduce_scatter(sum, matrix(sums_.front(), size() * rows(), sum_dtype_),
                                          Accumulate::no, compute_.record()));
    const auto& group = groups_[static_cast<std::size_t>(tensor)];
    ops::copy(compute_, matrix(group.own, own, shape_.dtype), sum);
  };
  turns_.meet(is_last(turn) ? together : Meanwhile());
  const auto [keys, values] = halves(own_rows(turn));
  ops::copy(compute_, mine.keys, keys);
  ops::copy(compute_, mine.values, values);
}

void VirtualContextRanks::sum(int turn, const Tensor& values) {
  const auto buffer_of = [&](int number) {
    return sums_of_values_[static_cast<std::size_t>(number)].tensor(DType::f32, {values.numel()});
  };
  ops::copy(compute_, buffer_of(turn), values);
  const int tensor = ranks_.tensor_of(turn);
  const auto together = [&] {
    for (int step = ranks_.tensor; step < ranks_.count(); step *= 2)
      for (int i = tensor; i < ranks_.count(); i += 2 * step)
        ops::add(compute_, buffer_of(i), buffer_of(i + step));
    axis_.collectives->set_subject("log-probabilities of documents");
    compute_.wait(axis_.collectives->all_reduce(buffer_of(tensor), compute_.record()));
  };
  turns_.meet(is_last(turn) ? together : Meanwhile());
  ops::copy(compute_, values, buffer_of(tensor));
}

}  // namespace llamesh::sharding
