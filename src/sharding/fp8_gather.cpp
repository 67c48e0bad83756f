#include "sharding/fp8_gather.hpp"

#include <algorithm>

#include "device/device.hpp"
#include "device/memory_meter.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t message_alignment = 64;  // bytes, as allocate_gathered() asks for

std::int64_t padded_to(std::int64_t multiple, std::int64_t n) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

Tensor as_sent(const Tensor& t) {
  return t.dtype() == DType::e4m3 ? Tensor(t.data(), DType::i8, {t.numel()}) : t;
}

Fp8Gather::Fp8Gather(comm::DeviceMesh::Axis& axis, const ShardLayout& layout,
                     std::span<const std::size_t> units, DType dtype)
    : axis_(axis),
      layout_(layout),
      dtype_(dtype),
      plans_(layout.units().size()),
      first_(layout.table().parameters.size()) {
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  std::int64_t rows = 0, numel = 0, others = 0;
  for (const auto u : units) {
    auto plan = make_plan(layout, u);
    if (plan.message_bytes(dtype) >= plan.shard_numel * size_of(dtype)) continue;
    plan.scales = device::Buffer(plan.rows * size_of(DType::f32));
    plan.first_rows_on_device = device::Buffer(axis.size * size_of(DType::i32));
    device::upload(axis.collectives->stream(),
                   plan.first_rows_on_device.tensor(DType::i32, {axis.size}),
                   plan.first_rows.data());
    rows = std::max(rows, plan.rows_of_rank);
    numel = std::max(numel, plan.shard_numel);
    others = std::max(others, plan.others_of_rank);
    plans_[u] = std::move(plan);
  }
  if (numel == 0) return;
  maxima_ = device::Buffer(rows * size_of(DType::f32));
  all_maxima_ = axis.collectives->allocate_gathered(rows * size_of(DType::f32));
  values_ = device::Buffer(numel);
  others_ = device::Buffer(others * size_of(dtype));
  all_others_ = axis.collectives->allocate_gathered(others * size_of(dtype));
  rounded_ = device::Buffer(numel * size_of(dtype));
}

Fp8Gather::Range Fp8Gather::common(const Range& a, const Range& b) {
  const auto begin = std::max(a.begin, b.begin);
  const auto end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

Fp8Gather::Plan Fp8Gather::make_plan(const ShardLayout& layout, std::size_t unit) {
  const auto& placed = layout.units()[unit];
  Plan plan{.matrices = {}, .others = {}, .shard_numel = placed.shard_numel};
  for (const auto id : placed.parameters) {
    const auto& shape = layout.local_shape(id);
    const Range range{layout.place(id).offset, numel(shape)};
    if (layout.table().is_linear(id)) {
      first_[model::index(id)] = plan.rows;
      plan.matrices.push_back({range, shape.back(), plan.rows});
      plan.rows += range.count / shape.back();
    } else {
      first_[model::index(id)] = plan.others_numel;
      plan.others.push_back({range, plan.others_numel});
      plan.others_numel += padded_to(message_alignment / size_of(dtype_), range.count);
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
    for (const auto& other : plan.others) others += common(other.range, plan.shard(rank)).count;
    plan.first_rows.push_back(static_cast<std::int32_t>(first));
    plan.rows_of_rank = std::max(plan.rows_of_rank, end - first);
    plan.others_of_rank = std::max(plan.others_of_rank, others);
  }
  plan.rows_of_rank = padded_to(message_alignment / size_of(DType::f32), plan.rows_of_rank);
  plan.others_of_rank = padded_to(message_alignment / size_of(dtype_), plan.others_of_rank);
  return plan;
}

Tensor Fp8Gather::parameter(model::ParameterId id, const Whole& whole) const {
  const auto& shape = layout_.local_shape(id);
  const bool is_linear = layout_.table().is_linear(id);
  const auto first = is_linear ? layout_.place(id).offset : first_[model::index(id)];
  return (is_linear ? whole.values : whole.others).slice(first, numel(shape)).reshape(shape);
}

Tensor Fp8Gather::scales(model::ParameterId id) const {
  if (!layout_.table().is_linear(id)) return {};
  const auto& shape = layout_.local_shape(id);
  return plan_of(id).scales.tensor(DType::f32, {numel(shape) / shape.back()},
                                   first_[model::index(id)] * size_of(DType::f32));
}

/// Calls visit(range, before, to) for the other parameters' elements on a rank, which has `before`
/// in front; `to` is their place in Whole::others.
template <class Visit>
void Fp8Gather::for_each_other(const Plan& plan, int rank, const Visit& visit) const {
  std::int64_t before = 0;
  for (const auto& other : plan.others) {
    const auto held = common(other.range, plan.shard(rank));
    if (held.count == 0) continue;
    visit(held, before, other.first + held.begin - other.range.begin);
    before += held.count;
  }
}

/// Calls visit(run, numbers, first_row) for the matrices' elements in this rank's shard. A run's
/// values are in `values_`, and `first_row` counts all rows in the unit.
template <class Visit>
void Fp8Gather::for_each_own_run(const Plan& plan, const Tensor& own, const Visit& visit) const {
  const auto shard = plan.shard(axis_.rank);
  for (const auto& matrix : plan.matrices) {
    const auto held = common(matrix.range, shard);
    if (held.count == 0) continue;
    const auto first = held.begin - matrix.range.begin, at = held.begin - shard.begin;
    visit(ops::Fp8Run{.first = first,
                      .cols = matrix.cols,
                      .scales = plan.scales.tensor(DType::f32, {matrix.range.count / matrix.cols},
                                                   matrix.first_row * size_of(DType::f32)),
                      .values = values_.tensor(DType::e4m3, {held.count}, at)},
          own.slice(at, held.count), matrix.first_row + first / matrix.cols);
  }
}

device::Event Fp8Gather::all_gather(std::size_t unit, const Whole& whole, const Tensor& mine,
                                    const device::Event& after) {
  auto& plan = *plans_[unit];
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  Tensor own = mine;
  if (mine.dtype() != dtype_) {
    own = rounded_.tensor(dtype_, {mine.numel()});
    ops::copy(stream, own, mine);
  }
  if (!plan.has_scales) agree_on_scales(plan, own);
  for_each_own_run(plan, own,
                   [&](const ops::Fp8Run& run, const Tensor& numbers, std::int64_t /*first_row*/) {
                     ops::quantize_run(stream, run, numbers);
                   });
  collectives.all_gather(as_sent(whole.values), values_.tensor(DType::i8, {plan.shard_numel}),
                         after);
  if (!plan.others.empty()) gather_others(plan, whole.others, own);
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

/// Ranks hold different numbers of elements, which are put together here.
void Fp8Gather::gather_others(const Plan& plan, const Tensor& whole, const Tensor& own) {
  auto& collectives = *axis_.collectives;
  auto& stream = collectives.stream();
  const auto count = plan.others_of_rank;
  const Tensor mine = others_.tensor(dtype_, {count});
  const auto first_of_shard = plan.shard(axis_.rank).begin;
  for_each_other(plan, axis_.rank,
                 [&](const Range& range, std::int64_t before, std::int64_t /*to*/) {
                   ops::copy(stream, mine.slice(before, range.count),
                             own.slice(range.begin - first_of_shard, range.count));
                 });
  const Tensor all = all_others_.tensor(dtype_, {axis_.size * count});
  collectives.all_gather(all, mine, {});
  for (int rank = 0; rank < axis_.size; ++rank)
    for_each_other(plan, rank, [&](const Range& range, std::int64_t before, std::int64_t to) {
      ops::copy(stream, whole.slice(to, range.count),
                all.slice(rank * count + before, range.count));
    });
}

}  // namespace llamesh::sharding
