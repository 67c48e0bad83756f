#include "model/layers/fp8_operands.hpp"

#include <algorithm>
#include <utility>

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

ops::Fp8Matrix take(ArenaAllocator& plan, std::int64_t numel, std::int64_t rows) {
  return {.values = plan.take(DType::e4m3, {numel}), .scales = plan.take(DType::f32, {rows})};
}

/// Returns the first elements of `room` as a matrix, or as a stack of them.
ops::Fp8Matrix shaped(const ops::Fp8Matrix& room, std::int64_t stacked, std::int64_t rows,
                      std::int64_t cols) {
  const Tensor values = room.values.slice(0, stacked * rows * cols);
  return {
      .values = stacked == 1 ? values.reshape({rows, cols}) : values.reshape({stacked, rows, cols}),
      .scales = room.scales.slice(0, stacked * rows)};
}

std::int64_t stacked(const Tensor& w) {
  return w.dims() == 3 ? w.size(0) : 1;
}

}  // namespace

Fp8Operands::Fp8Operands(ArenaAllocator& plan, const ParameterTable& table, std::int64_t rows) {
  std::int64_t widest = 0, weight_numel = 0, weight_rows = 0;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    if (!table.is_linear(static_cast<ParameterId>(i))) continue;
    const auto& s = table.parameters[i].shape;
    const auto out = s[s.size() - 2], in = s.back(), count = s.size() == 3 ? s[0] : 1;
    widest = std::max({widest, out, in});
    weight_numel = std::max(weight_numel, count * out * in);
    weight_rows = std::max(weight_rows, count * std::max(out, in));
  }
  input_ = take(plan, rows * widest, rows);
  weight_ = take(plan, weight_numel, weight_rows);
}

ops::Fp8Matrix Fp8Operands::left_as_input(const Tensor& x) {
  left_ = x;
  return shaped(input_, 1, x.rows(), x.cols());
}

ops::Fp8Matrix Fp8Operands::input(device::Stream& stream, const Tensor& x) {
  const auto q = shaped(input_, 1, x.rows(), x.cols());
  const Tensor left = std::exchange(left_, {});
  const bool has_x = left.data() == x.data() && left.rows() == x.rows() && left.cols() == x.cols();
  if (!has_x) ops::quantize_rows(stream, q, x);
  return q;
}

ops::Fp8Matrix Fp8Operands::weight(device::Stream& stream, const StoredWeight& w) const {
  const Tensor& values = w.values;
  if (w.is_fp8()) return {.values = values, .scales = w.scales};
  const auto q = shaped(weight_, stacked(values), values.rows() / stacked(values), values.cols());
  ops::quantize_rows(stream, q, values);
  return q;
}

ops::Fp8Matrix Fp8Operands::transposed_weight(device::Stream& stream, const StoredWeight& w) const {
  const Tensor& values = w.values;
  const auto q = shaped(weight_, stacked(values), values.cols(), values.rows() / stacked(values));
  if (w.is_fp8())
    ops::requantize_columns(stream, q, {.values = values, .scales = w.scales});
  else
    ops::quantize_columns(stream, q, values);
  return q;
}

}  // namespace llamesh::model
