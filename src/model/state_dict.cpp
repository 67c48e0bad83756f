#include "model/state_dict.hpp"

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

StateDict plain_state_dict(const ParameterTable& table) {
  StateDict dict;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto& parameter = table.parameters[i];
    const auto whole = Box::whole(parameter.shape);
    dict.push_back(
        {parameter.name, parameter.shape, {{whole, static_cast<ParameterId>(i), whole}}});
  }
  return dict;
}

void for_each_stored(const StoredPart& part, const Shape& shape, const BoxRange& range,
                     const VisitStored& visit) {
  if (part.transposed) return visit_columns(part, shape, range, visit);
  const BoxRange held{part.in_parameter, 0, part.in_parameter.numel()};
  for_each_shared(held, range, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    for_each_run(shape, {part.in_tensor, from, count},
                 [&](std::int64_t begin, std::int64_t at, std::int64_t run) {
                   visit(begin, to + at, 1, run);
                 });
  });
}

}  // namespace llamesh::model
