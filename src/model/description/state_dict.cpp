#include "model/description/state_dict.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llamesh::model {
namespace {

/// Visits a transposed part: a row of the tensor is a column of the parameter.
void visit_columns(const StoredPart& part, const Shape& shape, const BoxRange& range,
                   const VisitStored& visit) {
  const auto& held = part.in_parameter;
  const auto& box = range.box;
  const std::int64_t width = box.shape[1];
  const std::int64_t first_col = std::max(held.begin[1], box.begin[1]);
  const std::int64_t end_col = std::min(held.begin[1] + held.shape[1], box.begin[1] + width);
  for (std::int64_t col = first_col; col < end_col; ++col) {
    const std::int64_t c = col - box.begin[1];
    // Rows r of the box with r * width + c in [range.begin, range.begin + range.count).
    const std::int64_t before = std::max<std::int64_t>(range.begin - c, 0);
    const std::int64_t beyond = std::max<std::int64_t>(range.begin + range.count - c, 0);
    const std::int64_t first = std::max((before + width - 1) / width, held.begin[0] - box.begin[0]);
    const std::int64_t end =
        std::min((beyond + width - 1) / width, held.begin[0] + held.shape[0] - box.begin[0]);
    if (first >= end) continue;
    const std::int64_t tensor_row = part.in_tensor.begin[0] + col - held.begin[1];
    const std::int64_t tensor_col = part.in_tensor.begin[1] + box.begin[0] + first - held.begin[0];
    visit(tensor_row * shape[1] + tensor_col, first * width + c - range.begin, width, end - first);
  }
}

}  // namespace

void StateDictBuilder::plain(ParameterId id) {
  const auto& p = table_[id];
  const auto whole = Box::whole(p.shape);
  dict_.push_back({p.name, p.shape, {{whole, id, whole}}});
}

void StateDictBuilder::transposed(ParameterId id) {
  const auto& p = table_[id];
  const Shape stored{p.shape[1], p.shape[0]};
  dict_.push_back({p.name, stored, {{Box::whole(stored), id, Box::whole(p.shape), true}}});
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

void StateDictBuilder::like(ParameterId id, const std::vector<StoredPart>& parts) {
  plain(id);
  if (parts.front().transposed) return;
  dict_.back().parts = parts;
  for (auto& part : dict_.back().parts) {
    part.parameter = id;
    for (auto* box : {&part.in_tensor, &part.in_parameter}) box->shape[1] = table_[id].shape[1];
  }
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

void for_each_run(const StoredPart& part, const Shape& shape, std::int64_t first,
                  std::int64_t count, const VisitRun& visit) {
  if (part.row_step == 1) return for_each_run(shape, BoxRange{part.in_tensor, first, count}, visit);
  const auto width = part.in_tensor.numel() / part.in_tensor.shape[0];
  for (std::int64_t at = 0; at < count;) {
    const auto row = (first + at) / width, col = (first + at) % width;
    const auto run = std::min(width - col, count - at);
    visit((part.in_tensor.begin[0] + row * part.row_step) * width + col, at, run);
    at += run;
  }
}

void for_each_stored(const StoredPart& part, const Shape& shape, const BoxRange& range,
                     const VisitStored& visit) {
  if (part.transposed) return visit_columns(part, shape, range, visit);
  const BoxRange held{part.in_parameter, 0, part.in_parameter.numel()};
  for_each_shared(held, range, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    for_each_run(part, shape, from, count,
                 [&](std::int64_t begin, std::int64_t at, std::int64_t run) {
                   visit(begin, to + at, 1, run);
                 });
  });
}

}  // namespace llamesh::model
