#include <algorithm>

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Returns the dot product over k elements. Two sums keep two additions in flight.
template <class T>
float dot_product(const T* w, const float* x, std::int64_t k) {
  Vec even{};
  Vec odd{};
  std::int64_t i = 0;
  for (; i + 2 * vec_width <= k; i += 2 * vec_width) {
    even += load(w + i, Whole{}) * load(x + i, Whole{});
    odd += load(w + i + vec_width, Whole{}) * load(x + i + vec_width, Whole{});
  }
  for_each_vec(k - i, [&](std::int64_t j, auto lanes) {
    even += load(w + i + j, lanes) * load(x + i + j, lanes);
  });
  return sum(even + odd);
}

/// Returns the row in fp32.
const float* widened(const Tensor& x, Scratch& scratch) {
  if (x.dtype() == DType::f32) return x.as<float>();
  auto* wide = reinterpret_cast<float*>(scratch.bytes(matvec_scratch(x)));
  for_each_vec(x.cols(), [&](std::int64_t i, auto lanes) {
    store(wide + i, load(x.as<bf16>() + i, lanes), lanes);
  });
  return wide;
}

/// y = or += x w^T like ops::linear, for a single row x. Bound by reading w, which this does once
/// and in order; GEMM libraries reach half the memory bandwidth or less.
void matvec(Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  expects(x.rows() == 1 && y.rows() == 1 && y.cols() == w.rows() && x.cols() == w.cols(),
          "matvec: y ({}, {}), x ({}, {}), w ({}, {})", y.rows(), y.cols(), x.rows(), x.cols(),
          w.rows(), w.cols());
  thread_local static Scratch scratch;
  const float* const row = widened(x, scratch);
  const auto k = w.cols();
  with_type(w.dtype(), [&]<class W>(std::type_identity<W>) {
    with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
      const Rows<const W> weight(w);
      Y* const out = y.as<Y>();
      // Small dynamic tasks: a thread that loses its core for a while does not leave the others
      // waiting for half the matrix.
      const auto rows = rows_per_block(k, 32768);
      for_each_task((w.rows() + rows - 1) / rows, [&](std::int64_t task) {
        const auto last = std::min(w.rows(), (task + 1) * rows);
        for (auto o = task * rows; o < last; ++o) {
          const float before = accumulate == Accumulate::yes ? static_cast<float>(out[o]) : 0.0F;
          out[o] = Y(before + dot_product(weight[o], row, k));
        }
      });
    });
  });
}

}  // namespace

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  stream.run([=] {
    if (x.rows() == 1)
      matvec(y, x, w, accumulate);
    else
      gemm(Matrix(y), Matrix(x), Matrix(w).transposed(), accumulate);
  });
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  stream.run([=] { gemm(Matrix(dx), Matrix(dy), Matrix(w), accumulate); });
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  stream.run([=] { gemm(Matrix(dw), Matrix(dy).transposed(), Matrix(x), accumulate); });
}

}  // namespace llamesh::ops::cpu
