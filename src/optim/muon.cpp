#include "optim/muon.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "ops/ops.hpp"

namespace llamesh::optim {
namespace {

/// Iterations and coefficients of the authors' quintic.
constexpr int iterations = 5;
constexpr float quintic_a = 3.4445F, quintic_b = -4.7750F, quintic_c = 2.0315F;

/// Symmetric products are computed in block rows up to the diagonal, which leaves out this much.
constexpr std::int64_t block_rows = 4;
constexpr double triangle = (1 + 1.0 / block_rows) / 2;

/// A matrix in a rank's part of a unit: elements [offset, offset + rows cols) in the unit.
struct PlacedMatrix {
  model::ParameterId parameter;
  std::int64_t offset, rows, cols;
  int owner = 0;

  std::int64_t numel() const { return rows * cols; }
  /// Returns the FLOPs to orthogonalize it.
  double work() const {
    const auto m = static_cast<double>(std::min(rows, cols));
    const auto n = static_cast<double>(std::max(rows, cols));
    return iterations * 2 * m * m * ((1 + triangle) * n + triangle * m);
  }
  /// Returns the elements that the shard [first, last) has, as a range in the unit.
  std::pair<std::int64_t, std::int64_t> within(std::int64_t first, std::int64_t last) const {
    const auto begin = std::max(first, offset);
    return {begin, std::max(begin, std::min(last, offset + numel()))};
  }
};

/// Returns a unit's trained matrices in the order of their elements, if the rank's stage holds it;
/// a stack has one for each expert.
std::vector<PlacedMatrix> matrices_of(const sharding::ShardLayout& layout, std::size_t unit,
                                      int rank) {
  std::vector<PlacedMatrix> matrices;
  if (layout.units()[unit].frozen || !layout.holds(unit, rank)) return matrices;
  for (const auto id : layout.units()[unit].parameters) {
    if (!is_hidden_matrix(layout.table()[id])) continue;
    const auto& shape = layout.local_shape(id);
    const auto rows = shape[shape.size() - 2], cols = shape.back();
    const auto first = layout.place(id).offset;
    for (std::int64_t at = 0; at < numel(shape); at += rows * cols)
      matrices.push_back({id, first + at, rows, cols});
  }
  return matrices;
}

/// Gives each matrix, the most expensive one first, to the rank with the least work so far.
void assign(std::vector<PlacedMatrix>& matrices, std::vector<double>& work) {
  std::vector<PlacedMatrix*> by_work;
  for (auto& matrix : matrices) by_work.push_back(&matrix);
  std::ranges::stable_sort(by_work, std::greater{}, [](const auto* m) { return m->work(); });
  for (auto* matrix : by_work) {
    const auto rank = std::ranges::min_element(work);
    *rank += matrix->work();
    matrix->owner = static_cast<int>(rank - work.begin());
  }
}

/// y (k, k) = x x^T, or x^T x if not `wide`, up to the diagonal; some elements above it too.
void symmetric_product(device::Stream& stream, const Tensor& y, const Tensor& x, bool wide) {
  const auto k = y.rows();
  const auto block = (k + block_rows - 1) / block_rows;
  for (std::int64_t first = 0; first < k; first += block) {
    const auto last = std::min(k, first + block);
    const auto part = y.slice_rows(first, last - first).slice_cols(0, last);
    if (wide)
      ops::linear(stream, part, x.slice_rows(first, last - first), x.slice_rows(0, last),
                  Accumulate::no);
    else
      ops::linear_backward_weight(stream, part, x.slice_cols(first, last - first),
                                  x.slice_cols(0, last), Accumulate::no);
  }
}

}  // namespace

bool is_hidden_matrix(const model::Parameter& parameter) {
  using enum model::Role;
  const bool linear = parameter.role == column || parameter.role == row;
  return (linear || model::is_stacked(parameter.role)) && parameter.is_matrix();
}

void check_muon(const sharding::ShardLayout& layout, sharding::Offload offload) {
  validate(offload == sharding::Offload::none,
           "optimizer.name muon multiplies matrices on the device, but sharding.offload keeps its "
           "state on the host; set sharding.offload=none, or use adamw");
  for (std::size_t i = 0; i < layout.table().parameters.size(); ++i) {
    const auto& parameter = layout.table().parameters[i];
    if (parameter.frozen || !is_hidden_matrix(parameter)) continue;
    auto split = layout.placement(static_cast<model::ParameterId>(i)).split;
    if (model::is_stacked(parameter.role)) split.front().reset();  // whole experts
    for (const auto& axes : split)
      validate(
          layout.dims().group_size(axes) == 1,
          "optimizer.name muon needs whole matrices, but {} is split along {} among {} ranks; "
          "use the axis shard instead (mesh.axes.tensor=1, or another sharding.spec), or adamw",
          parameter.name, comm::to_string(axes, layout.dims()), layout.dims().group_size(axes));
  }
}

Muon::Muon(const MuonOptions& options, double weight_decay, sharding::ShardedState& state,
           comm::DeviceMesh& mesh)
    : options_(options), weight_decay_(weight_decay), state_(state) {
  const auto& layout = state.layout();
  std::int64_t max_matrix = 0, max_square = 0;
  std::size_t fewest = 0;  // matrices in a unit, and
  std::size_t most = 1;    // ranks that share them
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    auto& axis = mesh.along(layout.units()[u].sharded);
    auto& group = groups_[&axis];
    group.work.resize(static_cast<std::size_t>(axis.size));
    exchanges_.push_back(plan(u, group));
    exchanges_.back().axis = &axis;
    const auto matrices = matrices_of(layout, u, state.rank());
    for (const auto& matrix : matrices) {
      max_matrix = std::max(max_matrix, matrix.numel());
      const auto side = std::min(matrix.rows, matrix.cols);
      max_square = std::max(max_square, side * side);
    }
    if (!matrices.empty())
      fewest = fewest == 0 ? matrices.size() : std::min(fewest, matrices.size());
    most = std::max(most, static_cast<std::size_t>(axis.size));
  }
  if (most > 1) ahead_ = 1;
  if (most > 1 && fewest > 0) behind_ = (most + fewest - 1) / fewest;
  allocate(max_matrix, max_square);
}

/// Assigns a unit's matrices to ranks. Pure but for the group's sums.
Muon::Exchange Muon::plan(std::size_t unit, Group& group) {
  const auto& layout = state_.layout();
  const auto& u = layout.units()[unit];
  auto matrices = matrices_of(layout, unit, state_.rank());
  assign(matrices, group.work);
  const auto me = layout.dims().rank_in_group(u.sharded, state_.rank());
  const auto count_of = [&](int holder, int owner) {
    std::int64_t sum = 0;
    for (const auto& m : matrices) {
      if (m.owner != owner) continue;
      const auto [begin, end] = m.within(holder * u.shard_numel, (holder + 1) * u.shard_numel);
      sum += end - begin;
    }
    return sum;
  };
  Exchange exchange{.subject = "matrices of " + u.name};
  const auto shard = me * u.shard_numel;
  for (int rank = 0; rank < u.shards; ++rank) {
    exchange.held_counts.push_back(count_of(me, rank));
    exchange.whole_counts.push_back(count_of(rank, me));
    std::int64_t held = 0, whole = 0;
    for (const auto& m : matrices) {
      const auto [begin, end] = m.within(rank * u.shard_numel, (rank + 1) * u.shard_numel);
      held += end - begin;
      whole += m.owner == rank ? m.numel() : 0;
    }
    group.max_held = std::max(group.max_held, held);
    group.max_whole = std::max(group.max_whole, whole);
    for (const auto& m : matrices) {
      const auto [begin, end] = m.within(shard, shard + u.shard_numel);
      if (m.owner != rank || begin == end) continue;
      const auto scale =
          std::sqrt(std::max(1.0, static_cast<double>(m.rows) / static_cast<double>(m.cols)));
      const sharding::Piece piece{m.parameter, begin - layout.place(m.parameter).offset,
                                  end - begin, begin - shard};
      exchange.parts.push_back({piece, exchange.held, static_cast<float>(scale)});
      exchange.held += end - begin;
    }
  }
  for (const auto& m : matrices) {
    if (m.owner != me) continue;
    exchange.matrices.push_back({m.rows, m.cols, exchange.whole});
    exchange.whole += m.numel();
  }
  return exchange;
}

void Muon::allocate(std::int64_t max_matrix, std::int64_t max_square) {
  const device::ScopedMemoryTag use(device::MemoryUse::scratch);
  constexpr auto size = size_of(DType::f32);
  // In the order of the units, which is the same on every rank, as these are collective.
  for (const auto& exchange : exchanges_) {
    auto& group = groups_.at(exchange.axis);
    if (!group.slots.empty() || group.max_held + group.max_whole == 0) continue;
    auto& collectives = *exchange.axis->collectives;
    collectives.set_subject("matrices for Muon");
    collectives.connect_pairs();
    group.slots.resize(ahead_ + behind_ + 1);
    for (auto& slot : group.slots) {
      slot.held = collectives.allocate_symmetric(group.max_held * size);
      if (exchange.axis->size > 1)
        slot.whole = collectives.allocate_symmetric(group.max_whole * size);
    }
  }
  if (max_matrix == 0) return;
  scratch_ = {device::Buffer(max_matrix * size),
              device::Buffer(max_square * size),
              device::Buffer(max_square * size),
              {}};
  const auto dtype = state_.compute_dtype();
  if (dtype != DType::f32) scratch_[3] = device::Buffer(max_square * size_of(dtype));
}

Muon::Slot& Muon::slot_of(std::size_t unit) {
  auto& slots = groups_.at(exchanges_[unit].axis).slots;
  return slots[unit % slots.size()];
}

Tensor Muon::whole_of(std::size_t unit) {
  auto& slot = slot_of(unit);
  return (slot.whole ? slot.whole : slot.held).tensor(DType::f32, {exchanges_[unit].whole});
}

void Muon::step(double lr, double clip, const ForEachRounded& for_each_rounded,
                const std::function<void(std::size_t unit)>& on_updated) {
  const auto units = exchanges_.size();
  for (std::size_t i = 0; i < units + ahead_ + behind_; ++i) {
    if (i < units) gather(i, clip, for_each_rounded);
    if (i >= ahead_ && i - ahead_ < units) orthogonalize(i - ahead_);
    if (i < ahead_ + behind_) continue;
    const auto updated = i - ahead_ - behind_;
    update(updated, lr);
    if (!state_.layout().units()[updated].frozen) on_updated(updated);
  }
}

/// Updates a unit's momentum, and starts to gather its matrices.
void Muon::gather(std::size_t unit, double clip, const ForEachRounded& for_each_rounded) {
  const auto& exchange = exchanges_[unit];
  if (groups_.at(exchange.axis).slots.empty()) return;
  auto& slot = slot_of(unit);
  const ops::MuonMomentumStep step{static_cast<float>(options_.momentum), options_.nesterov,
                                   static_cast<float>(clip)};
  const auto held = slot.held.tensor(DType::f32, {exchange.held});
  for (const auto& part : exchange.parts) {
    const auto update = held.slice(part.offset, part.piece.count);
    const auto momentum = state_.moments()[0].of(unit, part.piece);
    const auto gradient = state_.gradients().of(unit, part.piece);
    for_each_rounded(part.piece, [&](std::int64_t at, std::int64_t count, const auto& bits) {
      ops::muon_momentum(
          state_.stream(),
          {update.slice(at, count), momentum.slice(at, count), gradient.slice(at, count), bits},
          step);
    });
  }
  if (exchange.axis->size == 1) return;
  auto& collectives = *exchange.axis->collectives;
  collectives.set_subject(exchange.subject.c_str());
  slot.arrived = collectives.all_to_all(whole_of(unit), exchange.whole_counts, held,
                                        exchange.held_counts, state_.stream().record());
}

/// Orthogonalizes this rank's matrices in a unit, and starts to return them.
void Muon::orthogonalize(std::size_t unit) {
  const auto& exchange = exchanges_[unit];
  if (groups_.at(exchange.axis).slots.empty()) return;
  auto& slot = slot_of(unit);
  if (exchange.axis->size > 1) state_.stream().wait(slot.arrived);
  const auto whole = whole_of(unit);
  for (const auto& m : exchange.matrices)
    orthogonalize(whole.slice(m.offset, m.rows * m.cols).reshape({m.rows, m.cols}));
  if (exchange.axis->size == 1) return;
  auto& collectives = *exchange.axis->collectives;
  collectives.set_subject(exchange.subject.c_str());
  slot.arrived =
      collectives.all_to_all(slot.held.tensor(DType::f32, {exchange.held}), exchange.held_counts,
                             whole, exchange.whole_counts, state_.stream().record());
}

/// Updates a unit's weights: SGD without momentum along the orthogonal matrices.
void Muon::update(std::size_t unit, double lr) {
  const auto& exchange = exchanges_[unit];
  if (groups_.at(exchange.axis).slots.empty()) return;
  auto& slot = slot_of(unit);
  if (exchange.axis->size > 1) state_.stream().wait(slot.arrived);
  for (const auto& part : exchange.parts) {
    const auto along =
        slot.held.tensor(DType::f32, {exchange.held}).slice(part.offset, part.piece.count);
    const auto& copies = state_.weights(unit).copy;
    const auto copy = copies ? copies.slice(part.piece.offset, part.piece.count) : Tensor();
    ops::sgd(state_.stream(), {state_.masters().of(unit, part.piece), along, along, copy},
             {static_cast<float>(lr), 0, static_cast<float>(weight_decay_), part.scale});
  }
}

/// Newton-Schulz iterations: x = x / |x|, then five times x = (a I + b A + c A^2) x with A = x x^T,
/// or from the other side if x has more rows than columns. The singular values end up near 1.
void Muon::orthogonalize(const Tensor& matrix) {
  auto& stream = state_.stream();
  const auto dtype = state_.compute_dtype();
  const bool wide = matrix.rows() <= matrix.cols(), rounds = dtype != DType::f32;
  const auto side = std::min(matrix.rows(), matrix.cols());
  const auto square = scratch_[1].tensor(DType::f32, {side, side});
  const auto polynomial = scratch_[2].tensor(DType::f32, {side, side});
  const auto in_scratch = [&](std::int64_t offset) {
    return scratch_[0].tensor(dtype, {matrix.rows(), matrix.cols()}, offset);
  };
  const auto as_factor = [&](const Tensor& of_square) {
    if (!rounds) return of_square;
    const auto rounded = scratch_[3].tensor(dtype, {side, side});
    ops::copy(stream, rounded, of_square);
    return rounded;
  };
  const double norm = std::sqrt(ops::sum_of_squares(stream, {matrix.reshape({matrix.numel()})}));
  ops::scale(stream, matrix, static_cast<float>(1 / (norm + 1e-7)));
  Tensor x = rounds ? in_scratch(matrix.numel() * size_of(dtype)) : matrix;
  Tensor next = in_scratch(0);
  if (rounds) ops::copy(stream, x, matrix);
  for (int i = 0; i < iterations; ++i) {
    symmetric_product(stream, square, x, wide);
    ops::matrix_quadratic(stream, square, square, 0, 0, 1);  // fills the upper triangle
    symmetric_product(stream, polynomial, as_factor(square), true);
    ops::matrix_quadratic(stream, polynomial, square, quintic_a, quintic_b, quintic_c);
    const auto factor = as_factor(polynomial);
    if (wide)
      ops::linear_backward_input(stream, next, factor, x, Accumulate::no);
    else
      ops::linear(stream, next, x, factor, Accumulate::no);
    std::swap(x, next);
  }
  ops::copy(stream, matrix, x);  // an odd number of iterations ends in the scratch
}

}  // namespace llamesh::optim
