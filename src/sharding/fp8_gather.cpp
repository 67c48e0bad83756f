#include "sharding/fp8_gather.hpp"

#include <algorithm>

#include "device/device.hpp"
#include "device/memory_meter.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t message_alignment = 64;  // as allocate_gathered() asks for

std::int64_t padded_to(std::int64_t multiple, std::int64_t n) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

Fp8Gather::Fp8Gather(comm::DeviceMesh::Axis& axis, const ShardLayout& layout,
                     std::span<const std::size_t> units, DType dtype)
    : axis_(axis), dtype_(dtype), plans_(layout.units().size()) {
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  std::int64_t rows = 0, bytes = 0, numel = 0;
  for (const auto u : units) {
    auto plan = make_plan(layout, u);
    if (message_bytes(plan) >= plan.shard_numel * size_of(dtype)) continue;
    plan.scales = device::Buffer(plan.rows * size_of(DType::f32));
    plan.first_rows_on_device = device::Buffer(axis.size * size_of(DType::i32));
    device::upload(axis.collectives->stream(),
                   plan.first_rows_on_device.tensor(DType::i32, {axis.size}),
                   plan.first_rows.data());
    rows = std::max(rows, plan.rows_of_rank);
    bytes = std::max(bytes, message_bytes(plan));
    numel = std::max(numel, plan.shard_numel);
    plans_[u] = std::move(plan);
  }
  if (numel == 0) return;
  maxima_ = device::Buffer(rows * size_of(DType::f32));
  all_maxima_ = axis.collectives->allocate_gathered(rows * size_of(DType::f32));
  messages_ = axis.collectives->shares_gathered() ? device::Buffer(bytes)
                                                  : axis.collectives->allocate_gathered(bytes);
  rounded_ = device::Buffer(numel * size_of(dtype));
}

Fp8Gather::Range Fp8Gather::common(const Range& a, const Range& b) {
  const auto begin = std::max(a.begin, b.begin);
  const auto end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

Fp8Gather::Plan Fp8Gather::make_plan(const ShardLayout& layout, std::size_t unit) const {
  const auto& placed = layout.units()[unit];
  Plan plan{.matrices = {}, .others = {}, .shard_numel = placed.shard_numel};
  for (const auto id : placed.parameters) {
    const auto& shape = layout.local_shape(id);
    const Range range{layout.place(id).offset, numel(shape)};
    if (layout.table().is_linear(id)) {
      plan.matrices.push_back({range, shape.back(), plan.rows});
      plan.rows += range.count / shape.back();
    } else {
      plan.others.push_back(range);
    }
  }
  for (int rank = 0; rank < axis_.size; ++rank) {
    std::int64_t first = plan.rows, end = 0, others = 0;
    for (const auto& matrix : plan.matrices) {
      const auto held = common(matrix.range, plan.shard(rank));
      if (held.count == 0) continue;
      const auto begin = held.begin - matrix.range.begin;
      first = std::min(first, matrix.first_row + begin / matrix.cols);
      end = matrix.first_row + (begin + held.count - 1) / matrix.cols + 1;
    }
    for (const auto& range : plan.others) others += common(range, plan.shard(rank)).count;
    plan.first_rows.push_back(static_cast<std::int32_t>(first));
    plan.rows_of_rank = std::max(plan.rows_of_rank, end - first);
    plan.others_of_rank = std::max(plan.others_of_rank, others);
  }
  plan.rows_of_rank = padded_to(message_alignment / size_of(DType::f32), plan.rows_of_rank);
  return plan;
}

/// Returns the bytes that a rank sends: codes for its whole shard, then its other parameters.
std::int64_t Fp8Gather::message_bytes(const Plan& plan) const {
  return padded_to(message_alignment, plan.shard_numel + plan.others_of_rank * size_of(dtype_));
}

/// Calls visit(range, first) for the other parameters' elements on a rank, which has `first` before
/// these.
template <class Visit>
void Fp8Gather::for_each_other(const Plan& plan, int rank, const Visit& visit) const {
  std::int64_t first = 0;
  for (const auto& range : plan.others) {
    const auto held = common(range, plan.shard(rank));
    if (held.count == 0) continue;
    visit(held, first);
    first += held.count;
  }
}

/// Calls visit(run, numbers, first_row) for the matrices' elements in this rank's shard. A run's
/// codes are in this rank's message, and `first_row` counts all rows in the unit.
template <class Visit>
void Fp8Gather::for_each_own_run(const Plan& plan, const Tensor& own, const Visit& visit) const {
  const bool shares = axis_.collectives->shares_gathered();
  const auto bytes = message_bytes(plan);
  const Tensor message = messages_.tensor(DType::i8, {1, bytes}, shares ? 0 : axis_.rank * bytes);
  const auto shard = plan.shard(axis_.rank);
  for (const auto& matrix : plan.matrices) {
    const auto held = common(matrix.range, shard);
    if (held.count == 0) continue;
    const auto first = held.begin - matrix.range.begin, at = held.begin - shard.begin;
    visit(ops::Fp8Run{.first = first,
                      .cols = matrix.cols,
                      .scales = scales_of(plan, matrix),
                      .parts = message,
                      .part_numel = plan.shard_numel,
                      .at = at},
          own.slice(at, held.count), matrix.first_row + first / matrix.cols);
  }
}

Tensor Fp8Gather::scales_of(const Plan& plan, const Matrix& matrix) {
  return plan.scales.tensor(DType::f32, {matrix.range.count / matrix.cols},
                            matrix.first_row * size_of(DType::f32));
}

device::Event Fp8Gather::all_gather(std::size_t unit, const Tensor& whole, const Tensor& mine,
                                    const device::Event& after) {
  auto& plan = *plans_[unit];
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  const bool shares = collectives.shares_gathered();
  Tensor own = mine;
  if (shares || mine.dtype() != dtype_) {
    own = rounded_.tensor(dtype_, {mine.numel()});
    ops::copy(stream, own, mine);
  }
  if (!plan.has_scales) agree_on_scales(plan, own);
  if (shares) {
    round_own(plan, own);
    return collectives.all_gather(whole, own, after);
  }
  send(plan, own);
  stream.wait(after);
  receive(plan, whole);
  return stream.record();
}

void Fp8Gather::agree_on_scales(Plan& plan, const Tensor& own) {
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  const auto rows = plan.rows_of_rank;
  const Tensor maxima = maxima_.tensor(DType::f32, {rows});
  const Tensor all = all_maxima_.tensor(DType::f32, {axis_.size, rows});
  device::set_bytes(stream, maxima, 0);
  const std::int64_t first_of_rank = plan.first_rows[static_cast<std::size_t>(axis_.rank)];
  for_each_own_run(
      plan, own, [&](const ops::Fp8Run& run, const Tensor& numbers, std::int64_t first_row) {
        const auto touched = (run.first % run.cols + numbers.numel() + run.cols - 1) / run.cols;
        ops::row_maxima(stream, maxima.slice(first_row - first_of_rank, touched), numbers, run);
      });
  collectives.all_gather(all.reshape({all.numel()}), maxima, {});
  ops::row_scales(stream, plan.scales.tensor(DType::f32, {plan.rows}), all,
                  plan.first_rows_on_device.tensor(DType::i32, {axis_.size}));
  plan.has_scales = true;
}

/// Rounds this rank's shard where it is.
void Fp8Gather::round_own(const Plan& plan, const Tensor& own) {
  auto& stream = axis_.collectives->stream();
  for_each_own_run(plan, own,
                   [&](const ops::Fp8Run& run, const Tensor& numbers, std::int64_t /*first_row*/) {
                     ops::quantize_run(stream, run, numbers);
                     ops::dequantize_run(stream, numbers, run);
                   });
}

/// Returns a rank's other parameters in its message.
Tensor Fp8Gather::others_in(const Plan& plan, int rank, std::int64_t first,
                            std::int64_t count) const {
  return messages_.tensor(dtype_, {count},
                          rank * message_bytes(plan) + plan.shard_numel + first * size_of(dtype_));
}

void Fp8Gather::send(const Plan& plan, const Tensor& own) {
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  for_each_own_run(plan, own,
                   [&](const ops::Fp8Run& run, const Tensor& numbers, std::int64_t /*first_row*/) {
                     ops::quantize_run(stream, run, numbers);
                   });
  const auto first_of_shard = plan.shard(axis_.rank).begin;
  for_each_other(plan, axis_.rank, [&](const Range& range, std::int64_t first) {
    ops::copy(stream, others_in(plan, axis_.rank, first, range.count),
              own.slice(range.begin - first_of_shard, range.count));
  });
  const auto bytes = message_bytes(plan);
  collectives.all_gather(messages_.tensor(DType::i8, {axis_.size * bytes}),
                         messages_.tensor(DType::i8, {bytes}, axis_.rank * bytes), {});
}

void Fp8Gather::receive(const Plan& plan, const Tensor& whole) {
  auto& stream = axis_.collectives->stream();
  const Tensor parts = messages_.tensor(DType::i8, {axis_.size, message_bytes(plan)});
  for (const auto& matrix : plan.matrices)
    ops::dequantize_run(stream, whole.slice(matrix.range.begin, matrix.range.count),
                        {.first = 0,
                         .cols = matrix.cols,
                         .scales = scales_of(plan, matrix),
                         .parts = parts,
                         .part_numel = plan.shard_numel,
                         .at = matrix.range.begin});
  for (int rank = 0; rank < axis_.size; ++rank)
    for_each_other(plan, rank, [&](const Range& range, std::int64_t first) {
      ops::copy(stream, whole.slice(range.begin, range.count),
                others_in(plan, rank, first, range.count));
    });
}

}  // namespace llamesh::sharding
