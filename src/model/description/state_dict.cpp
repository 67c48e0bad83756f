#include "model/description/state_dict.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llamesh::model {
namespace {

/// Visits a transposed part: a row of the tensor's matrix is a column of the parameter's.
void visit_columns(const StoredPart& part, const Shape& shape, const BoxRange& range,
                   const VisitStored& visit) {
  const auto& held = part.in_parameter;
  const auto& box = range.box;
  const auto R = box.shape.size() - 2, C = R + 1;  // the dims for rows and columns
  const std::int64_t width = box.shape[C];
  std::int64_t matrix = 0, stored_matrix = 0;  // in a stack
  if (R > 0) {
    matrix = held.begin[0] - box.begin[0];
    stored_matrix = part.in_tensor.begin[0];
    if (matrix < 0 || matrix >= box.shape[0]) return;
  }
  const std::int64_t begin = range.begin - matrix * box.shape[R] * width;  // within the matrix
  const std::int64_t first_col = std::max(held.begin[C], box.begin[C]);
  const std::int64_t end_col = std::min(held.begin[C] + held.shape[C], box.begin[C] + width);
  for (std::int64_t col = first_col; col < end_col; ++col) {
    const std::int64_t c = col - box.begin[C];
    // Rows r of the box with r * width + c in [begin, begin + range.count).
    const std::int64_t before = std::max<std::int64_t>(begin - c, 0);
    const std::int64_t beyond = std::max<std::int64_t>(begin + range.count - c, 0);
    const std::int64_t first = std::max((before + width - 1) / width, held.begin[R] - box.begin[R]);
    const std::int64_t end = std::min(
        {(beyond + width - 1) / width, box.shape[R], held.begin[R] + held.shape[R] - box.begin[R]});
    if (first >= end) continue;
    const std::int64_t tensor_row = part.in_tensor.begin[R] + col - held.begin[C];
    const std::int64_t tensor_col =
        part.in_tensor.begin[C] + (box.begin[R] + first - held.begin[R]) * part.column_step;
    visit({(stored_matrix * shape[R] + tensor_row) * shape[C] + tensor_col, part.column_step,
           end - first},
          first * width + c - begin, width);
  }
}

/// Visits elements [first, first + count) of a part that is not transposed. `to`: where the first
/// is in the range.
void visit_rows(const StoredPart& part, const Shape& shape, std::int64_t first, std::int64_t count,
                std::int64_t to, const VisitStored& visit) {
  if (part.row_step == 1 && part.column_step == 1)
    return for_each_run(shape, BoxRange{part.in_tensor, first, count},
                        [&](std::int64_t begin, std::int64_t at, std::int64_t run) {
                          visit({begin, 1, run}, to + at, 1);
                        });
  const auto& [from, size] = part.in_tensor;
  const bool is_vector = shape.size() == 1;  // one column
  const auto columns = is_vector ? 1 : size.back(), stored_columns = is_vector ? 1 : shape.back();
  const auto first_column = is_vector ? 0 : from.back();
  const auto first_row = shape.size() == 3 ? from[0] * shape[1] + from[1] : from[0];
  for (std::int64_t at = 0; at < count;) {
    const auto row = first_row + (first + at) / columns * part.row_step;
    const auto column = (first + at) % columns;
    const auto run = std::min(columns - column, count - at);
    visit({row * stored_columns + first_column + column * part.column_step, part.column_step, run},
          to + at, 1);
    at += run;
  }
}

}  // namespace

void StateDictBuilder::plain(ParameterId id) {
  const auto& p = table_[id];
  const auto whole = Box::whole(p.shape);
  dict_.push_back({p.name, p.shape, {{whole, id, whole}}});
}

void StateDictBuilder::transposed(ParameterId id) {
  interleaved(table_[id].name, id, {.place = 0, .of = 1});
}

void StateDictBuilder::interleaved(const std::string& name, ParameterId id, const Turn& turn) {
  const auto& p = table_[id];
  StateDictTensor stored{name, p.shape, {}};
  const auto add = [&](const Box& held) {
    StoredPart part{.in_tensor = held, .parameter = id, .in_parameter = held};
    part.transposed = p.is_matrix();
    if (part.transposed)
      for (auto* dims : {&part.in_tensor.begin, &part.in_tensor.shape})
        std::swap((*dims)[dims->size() - 2], dims->back());
    part.in_tensor.begin.back() = turn.place;
    part.column_step = turn.of;
    stored.parts.push_back(part);
  };
  const auto whole = Box::whole(p.shape);
  if (p.shape.size() < 3) add(whole);
  for (std::int64_t i = 0; p.shape.size() == 3 && i < p.shape[0]; ++i)
    add({{i, 0, 0}, {1, p.shape[1], p.shape[2]}});
  if (p.is_matrix()) std::swap(stored.shape[stored.shape.size() - 2], stored.shape.back());
  stored.shape.back() *= turn.of;
  if (turn.place == 0) return dict_.push_back(std::move(stored));
  auto& parts = std::ranges::find(dict_, name, &StateDictTensor::name)->parts;
  parts.insert(parts.end(), stored.parts.begin(), stored.parts.end());
}

/// Returns the tensor `name`, which grows along `dim`; adds an empty one for parts with that shape.
StateDictTensor& StateDictBuilder::tensor(const std::string& name, const Shape& part,
                                          std::size_t dim) {
  auto found = std::ranges::find(dict_, name, &StateDictTensor::name);
  if (found != dict_.end()) return *found;
  auto& added = dict_.emplace_back(name, part);
  added.shape[dim] = 0;
  return added;
}

void StateDictBuilder::fused(const std::string& name, ParameterId id, bool transposed) {
  const auto& p = table_[id];
  auto shape = p.shape;
  if (transposed) std::ranges::reverse(shape);
  const std::size_t dim = transposed ? shape.size() - 1 : 0;
  auto& to = tensor(name, shape, dim);
  Box in_tensor = Box::whole(shape);
  in_tensor.begin[dim] = to.shape[dim];
  to.parts.push_back({in_tensor, id, Box::whole(p.shape), transposed});
  to.shape[dim] += shape[dim];
}

void StateDictBuilder::fused(const std::string& name, ParameterId id, const RotaryOrder& order) {
  const auto& shape = table_[id].shape;
  auto& to = tensor(name, shape, 0);
  for (auto part : heads(id, order)) {
    part.in_tensor.begin[0] += to.shape[0];
    to.parts.push_back(std::move(part));
  }
  to.shape[0] += shape[0];
}

void StateDictBuilder::fused(const std::string& name, ParameterId id, const RowBlocks& blocks) {
  const auto whole = Box::whole(table_[id].shape);
  auto& to = tensor(name, whole.shape, 0);
  to.shape[0] += whole.shape[0];
  for (std::int64_t row = 0; row < whole.shape[0]; row += blocks.rows) {
    StoredPart part{whole, id, whole};
    part.in_tensor.begin[0] = blocks.first + row / blocks.rows * blocks.step;
    part.in_parameter.begin[0] = row;
    part.in_tensor.shape[0] = part.in_parameter.shape[0] = blocks.rows;
    to.parts.push_back(std::move(part));
  }
}

void StateDictBuilder::rotary(ParameterId id, const RotaryOrder& order) {
  dict_.push_back({table_[id].name, table_[id].shape, heads(id, order)});
}

/// Returns the parts for a tensor that holds the parameter alone.
std::vector<StoredPart> StateDictBuilder::heads(ParameterId id, const RotaryOrder& order) const {
  const auto& p = table_[id];
  const auto whole = Box::whole(p.shape);
  if (order.is_ours()) return {{whole, id, whole}};
  const auto half = order.head_dim / 2, turns = order.rotated / 2;
  std::vector<StoredPart> parts;
  const auto add = [&](std::int64_t ours, std::int64_t theirs, std::int64_t rows,
                       std::int64_t step) {
    if (rows == 0) return;
    Box to = whole, from = whole;
    to.begin[0] = theirs, from.begin[0] = ours;
    to.shape[0] = from.shape[0] = rows;
    parts.push_back({to, id, from, /*transposed=*/false, step});
  };
  const bool interleaved = order.pairs == RotaryPairs::interleaved;
  add(0, 0, order.first_row, 1);
  for (auto head = order.first_row; head < p.shape[0]; head += order.head_dim) {
    const auto unturned = half - turns;
    const auto first = order.rotates_last ? head + 2 * unturned : head;
    add(head, first, turns, interleaved ? 2 : 1);
    add(head + half, first + (interleaved ? 1 : turns), turns, interleaved ? 2 : 1);
    const auto rest = order.rotates_last ? head : head + order.rotated;
    add(head + turns, rest, unturned, 1);
    add(head + half + turns, rest + unturned, unturned, 1);
  }
  return parts;
}

void StateDictBuilder::unstacked(ParameterId id) {
  const auto& p = table_[id];
  const auto& module = table_[p.module].name;
  const Shape matrix{p.shape[1], p.shape[2]};
  for (std::int64_t i = 0; i < p.shape[0]; ++i)
    dict_.push_back({fmt::format("{}.{}{}.weight", module, i, p.name.substr(module.size())),
                     matrix,
                     {{Box::whole(matrix), id, Box{{i, 0, 0}, {1, matrix[0], matrix[1]}}}}});
}

StateDict plain_state_dict(const ParameterTable& table) {
  StateDictBuilder dict(table);
  for (std::size_t i = 0; i < table.parameters.size(); ++i) dict.plain(static_cast<ParameterId>(i));
  return dict.take();
}

StateDictTensor with_exchanged_dims(StateDictTensor tensor) {
  const auto exchange = [](Shape& shape) { std::swap(shape[shape.size() - 2], shape.back()); };
  exchange(tensor.shape);
  for (auto& part : tensor.parts) {
    exchange(part.in_tensor.begin);
    exchange(part.in_tensor.shape);
    std::swap(part.row_step, part.column_step);
    part.transposed = !part.transposed;
  }
  return tensor;
}

void for_each_stored(const StoredPart& part, const Shape& shape, const BoxRange& range,
                     const VisitStored& visit) {
  if (part.transposed) return visit_columns(part, shape, range, visit);
  const BoxRange held{part.in_parameter, 0, part.in_parameter.numel()};
  for_each_shared(held, range, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    visit_rows(part, shape, from, count, to, visit);
  });
}

}  // namespace llamesh::model
