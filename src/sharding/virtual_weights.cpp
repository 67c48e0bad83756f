#include "sharding/virtual_weights.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {

using model::index;
using model::Pass;

VirtualWeights::VirtualWeights(Fsdp& fsdp, const ShardLayout& whole, int rank,
                               const ShardLayout& parts, const VirtualRanks& ranks,
                               const std::vector<int>& members, Turns& turns)
    : fsdp_(fsdp),
      whole_(whole),
      layout_(parts),
      ranks_(ranks),
      turns_(turns),
      held_units_of_(whole.table().modules.size()),
      entered_(whole.units().size()) {
  const auto count = whole.units().size();
  for (std::size_t u = 0; u < count; ++u) {
    expects(whole.units()[u].parameters == parts.units()[u].parameters,
            "{} has other parameters on virtual ranks", whole.units()[u].name);
    if (!whole.holds(u, rank)) continue;
    for (const auto module : whole.units()[u].modules) held_units_of_[index(module)].push_back(u);
  }
  const auto in = [](device::MemoryUse what) {
    return [what](std::int64_t bytes) {
      const device::ScopedMemoryTag use(what);
      return device::Buffer(bytes);
    };
  };
  for (int turn = 0; turn < turns.count(); ++turn) {
    views_.emplace_back(*this, turn);
    auto& member = members_.emplace_back(
        Turn{SlotPool(in(device::MemoryUse::gathered_weights), count, /*behind=*/0),
             SlotPool(in(device::MemoryUse::unsharded_gradients), count, /*behind=*/0),
             std::vector<UnitOfTurn>(count),
             {},
             std::vector<bool>(whole.table().parameters.size())});
    for (std::size_t p = 0; p < whole.table().parameters.size(); ++p) {
      auto part = part_of(static_cast<model::ParameterId>(p), rank,
                          members[static_cast<std::size_t>(turn)]);
      part.is_first_copy =
          ranks.tensor_of(turn) == 0 ||
          members_[static_cast<std::size_t>(turn) - 1].parts[p].first != part.first;
      member.parts.push_back(part);
    }
  }
}

VirtualWeights::Part VirtualWeights::part_of(model::ParameterId id, int rank, int member) const {
  const auto& all = whole_.local_shape(id);
  const auto& mine = layout_.local_shape(id);
  Part part{
      .rows = 1, .cols = numel(all), .first = 0, .count = numel(mine), .is_first_copy = false};
  for (std::size_t d = 0; d < all.size(); ++d) {
    if (mine[d] == all[d]) continue;
    const auto first = layout_.part(id, member).begin[d] - whole_.part(id, rank).begin[d];
    part.rows = 1;
    std::int64_t behind = 1;
    for (std::size_t i = 0; i < d; ++i) part.rows *= all[i];
    for (auto i = d + 1; i < all.size(); ++i) behind *= all[i];
    part.cols = all[d] * behind;
    part.first = first * behind;
    part.count = mine[d] * behind;
    expects(first >= 0 && first + mine[d] <= all[d] && part.rows * part.count == numel(mine),
            "{}: rows {} to {} on a rank with {}", whole_.table()[id].name, first, first + mine[d],
            all[d]);
  }
  return part;
}

void VirtualWeights::View::no_gradient(model::ParameterId id) {
  const auto [tensor, accumulate] = gradient(id);
  if (tensor && accumulate == Accumulate::no) device::set_bytes(all_.compute_, tensor, 0);
}

void VirtualWeights::enter(model::ModuleId module, Pass pass) {
  fsdp_.enter(module, pass);
  for (const auto u : held_units_of_[index(module)])
    if (entered_[u]++ == 0) cut(u);
}

void VirtualWeights::leave(model::ModuleId module, Pass pass) {
  const auto& units = held_units_of_[index(module)];
  for (const auto u : units)
    if (entered_[u] == 1 && pass == Pass::backward && !whole_.units()[u].frozen) join_gradients(u);
  fsdp_.leave(module, pass);
  for (const auto u : units)
    if (--entered_[u] == 0) release(u);
}

Tensor VirtualWeights::in_unit(const Tensor& unit, model::ParameterId id) const {
  const auto& shape = layout_.local_shape(id);
  return unit.slice(layout_.place(id).offset, numel(shape)).reshape(shape);
}

namespace {

/// Returns the part of a whole parameter, as a matrix.
Tensor cut_out(const Tensor& whole, std::int64_t rows, std::int64_t cols, std::int64_t first,
               std::int64_t count) {
  return whole.reshape({rows, cols}).slice_cols(first, count);
}

}  // namespace

/// Turns with other tokens share the weights of the first ones.
void VirtualWeights::cut(std::size_t u) {
  const auto& unit = layout_.units()[u];
  const auto dtype = fsdp_.parameter(unit.parameters.front()).dtype();
  for (std::size_t t = 0; std::cmp_less(t, ranks_.tensor); ++t) {
    auto& turn = members_[t];
    const auto bytes = unit.numel * size_of(dtype);
    auto& weights = turn.units[u].weights;
    weights = turn.weights.acquire(u, bytes).buffer.tensor(dtype, {unit.numel});
    for (const auto id : unit.parameters) {
      const auto& part = turn.parts[index(id)];
      ops::copy(compute_, in_unit(weights, id).reshape({part.rows, part.count}),
                cut_out(fsdp_.parameter(id), part.rows, part.cols, part.first, part.count));
    }
  }
}

void VirtualWeights::release(std::size_t u) {
  for (std::size_t t = 0; std::cmp_less(t, ranks_.tensor); ++t) {
    members_[t].weights.release(u, compute_.record());
    members_[t].units[u].weights = {};
  }
}

Tensor VirtualWeights::parameter(std::size_t turn, model::ParameterId id) {
  const auto first = static_cast<std::size_t>(ranks_.tensor_of(static_cast<int>(turn)));
  const Tensor& unit = members_[first].units[layout_.place(id).unit].weights;
  expects(static_cast<bool>(unit), "{} is read outside of its module", layout_.table()[id].name);
  return in_unit(unit, id);
}

model::GradientSlot VirtualWeights::gradient(std::size_t number, model::ParameterId id) {
  auto& turn = members_[number];
  if (layout_.table()[id].frozen || !has_gradient(turn, id)) return {{}, Accumulate::no};
  const auto u = layout_.place(id).unit;
  auto& gradients = turn.units[u].gradients;
  if (!gradients) {
    const auto count = layout_.units()[u].numel;
    const auto& slot = turn.gradients.acquire(u, count * size_of(DType::f32));
    gradients = slot.buffer.tensor(DType::f32, {count});
  }
  auto written = turn.written[index(id)];
  const auto accumulate = written ? Accumulate::yes : Accumulate::no;
  written = true;
  return {in_unit(gradients, id), accumulate};
}

/// Gives Fsdp the gradients of a unit, and forgets them.
void VirtualWeights::join_gradients(std::size_t u) {
  for (const auto id : layout_.units()[u].parameters) {
    for (auto& turn : members_) {
      expects(turn.written[index(id)] || !has_gradient(turn, id), "{} got no gradient",
              layout_.table()[id].name);
      turn.written[index(id)] = false;
    }
    if (is_partial(id)) add_up_copies(id);
    add_up_context(id);
    const auto [whole, accumulate] = fsdp_.gradient(id);
    for (std::size_t t = 0; std::cmp_less(t, ranks_.tensor); ++t) {
      const auto& part = members_[t].parts[index(id)];
      if (part.is_first_copy)
        join(whole, part, in_unit(members_[t].units[u].gradients, id), accumulate);
    }
  }
  for (auto& turn : members_) {
    if (!turn.units[u].gradients) continue;
    turn.gradients.release(u, compute_.record());
    turn.units[u].gradients = {};
  }
}

/// Adds one turn's gradient to another's.
void VirtualWeights::add_up(model::ParameterId id, std::size_t turn, std::size_t from) {
  const auto u = layout_.place(id).unit;
  ops::add(compute_, in_unit(members_[turn].units[u].gradients, id),
           in_unit(members_[from].units[u].gradients, id));
}

/// Adds up a partial gradient over the turns that have the same part, as a balanced tree: the first
/// one then has the sum.
void VirtualWeights::add_up_copies(model::ParameterId id) {
  const auto turns = static_cast<std::size_t>(ranks_.tensor);
  std::size_t parts = 0;
  for (std::size_t t = 0; t < turns; ++t)
    parts += members_[t].parts[index(id)].is_first_copy ? 1 : 0;
  for (std::size_t step = 1; step < turns / parts; step *= 2)
    for (std::size_t i = 0; i < members_.size(); i += 2 * step) add_up(id, i, i + step);
}

/// Adds up a gradient over the turns that have other tokens, likewise.
void VirtualWeights::add_up_context(model::ParameterId id) {
  const auto turns = static_cast<std::size_t>(ranks_.tensor);
  for (std::size_t step = turns; step < members_.size(); step *= 2)
    for (std::size_t i = 0; i < members_.size(); i += 2 * step)
      for (std::size_t t = i; t < i + turns; ++t)
        if (members_[t].parts[index(id)].is_first_copy) add_up(id, t, t + step);
}

/// Sets or adds a part's gradient, which is then undefined.
void VirtualWeights::join(const Tensor& whole, const Part& part, const Tensor& gradient,
                          Accumulate accumulate) {
  const Tensor to = cut_out(whole, part.rows, part.cols, part.first, part.count);
  const Tensor from = gradient.reshape({part.rows, part.count});
  if (accumulate == Accumulate::yes) {
    if (scratch_.bytes() < from.bytes()) scratch_ = device::Buffer(from.bytes());
    const Tensor before = scratch_.tensor(DType::f32, {part.rows, part.count});
    ops::copy(compute_, before, to);
    ops::add(compute_, from, before);
  }
  ops::copy(compute_, to, from);
}

}  // namespace llamesh::sharding
