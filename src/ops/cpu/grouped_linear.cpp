#include <cstring>

#include "ops/cpu/expert_starts.hpp"
#include "ops/cpu/gemm.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/typed.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Calls body(first, count, weight) for each expert: its rows, and its (out, in) part of w.
template <class Body>
void for_each_expert(const Tensor& w, const Tensor& starts, std::int64_t rows, const Body& body) {
  const auto* start = starts_of(starts, rows).data();
  for (std::int64_t e = 0; e < w.size(0); ++e)
    body(start[e], start[e + 1] - start[e], w.slice_rows(e * w.size(1), w.size(1)));
}

void check(const Tensor& w, const Tensor& starts, const Tensor& wide, const Tensor& narrow) {
  expects(w.dims() == 3 && w.dense() && starts.numel() == w.size(0) + 1 &&
              wide.rows() == narrow.rows() && wide.cols() == w.size(1) &&
              narrow.cols() == w.size(2),
          "grouped_linear shapes");
}

}  // namespace

void grouped_gemm(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& starts,
                  Accumulate accumulate) {
  check(w, starts, y, x);
  for_each_expert(w, starts, x.rows(), [&](auto first, auto count, const Tensor& weight) {
    gemm(Matrix(y.slice_rows(first, count)), Matrix(x.slice_rows(first, count)),
         Matrix(weight).transposed(), accumulate, bf16_products(), {Ragged::Size::m, x.rows()});
  });
}

void grouped_linear(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor starts,
                    Accumulate accumulate) {
  stream.run([=] { grouped_gemm(y, x, w, starts, accumulate); });
}

void grouped_linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Tensor starts,
                                   Accumulate accumulate) {
  check(w, starts, dy, dx);
  stream.run([=] {
    for_each_expert(w, starts, dy.rows(), [&](auto first, auto count, const Tensor& weight) {
      gemm(Matrix(dx.slice_rows(first, count)), Matrix(dy.slice_rows(first, count)), Matrix(weight),
           accumulate, bf16_products(), {Ragged::Size::m, dy.rows()});
    });
  });
}

void grouped_linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Tensor starts,
                                    Accumulate accumulate) {
  check(dw, starts, dy, x);
  stream.run([=] {
    for_each_expert(dw, starts, dy.rows(), [&](auto first, auto count, const Tensor& gradient) {
      if (count > 0)
        gemm(Matrix(gradient), Matrix(dy.slice_rows(first, count)).transposed(),
             Matrix(x.slice_rows(first, count)), accumulate, bf16_products(),
             {Ragged::Size::k, x.rows()});
      else if (accumulate == Accumulate::no)
        std::memset(gradient.data(), 0, static_cast<std::size_t>(gradient.bytes()));
    });
  });
}

}  // namespace llamesh::ops::cpu
