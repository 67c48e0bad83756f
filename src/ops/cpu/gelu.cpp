#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr float cubic = 0.044715F;
constexpr float twice_sqrt_2_over_pi = 1.5957691216057308F;

/// Returns (1 + tanh(u)) / 2 with an absolute error below 2e-7; 0 below -9, 1 above 9, NaN for NaN.
/// tanh is the minimax quotient u P(u^2) / Q(u^2) on [-9, 9] (iteratively reweighted least squares;
/// error 2e-8 before rounding): one division, as in sigmoid(2 u), but half its multiplications.
inline Vec weight_of_tanh(Vec u) {
  const Vec y = u * u;
  Vec p = broadcast(1.31842046e-8F);
  p = p * y + 2.04718153e-5F;
  p = p * y + 3.48658091e-3F;
  p = p * y + 0.133731969F;
  p = p * y + 0.999999906F;
  Vec q = broadcast(7.70265521e-7F);
  q = q * y + 3.27138382e-4F;
  q = q * y + 2.58419754e-2F;
  q = q * y + 0.467064937F;
  q = q * y + 1.0F;
  const Vec inside = 0.5F + 0.5F * u * p / q;
  const Vec low = u < -9.0F ? Vec{} : inside;
  return u > 9.0F ? broadcast(1.0F) : low;
}

/// The weight of x in its own GELU: u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec weight(Vec x) {
  return weight_of_tanh(0.5F * twice_sqrt_2_over_pi * x * (1.0F + cubic * x * x));
}

/// Calls body(i, lanes) for all elements of dense matrices like `shape`.
template <class Body>
void for_each_element(const Tensor& shape, const Body& body) {
  const auto cols = shape.cols();
  for_each_block(shape.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for_each_vec((last - first) * cols,
                 [&](std::int64_t i, auto lanes) { body(first * cols + i, lanes); });
  });
}

}  // namespace

void gelu(Stream& stream, Tensor out, Tensor x) {
  expects(same_matrix_shape(out, x) && out.dense() && x.dense(), "gelu shapes");
  stream.run([=] {
    with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
      for_each_element(x, [&](std::int64_t i, auto lanes) {
        const auto v = load(x.as<T>() + i, lanes);
        store(out.as<T>() + i, v * weight(v), lanes);
      });
    });
  });
}

void gelu_backward(Stream& stream, Tensor dx, Tensor out, Tensor dout, Tensor x) {
  expects(same_matrix_shape(dx, x) && same_matrix_shape(dout, x) &&
              (!out || (same_matrix_shape(out, x) && out.dense())) && dx.dense() && x.dense() &&
              dout.dense(),
          "gelu_backward shapes");
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      T* again = out ? out.as<T>() : nullptr;
      for_each_element(x, [&](std::int64_t i, auto lanes) {
        const auto v = load(x.as<T>() + i, lanes);
        const auto d = load(dout.as<T>() + i, lanes);
        const auto s = weight(v);
        if (again) store(again + i, v * s, lanes);
        const auto slope = twice_sqrt_2_over_pi * (1.0F + 3.0F * cubic * v * v);
        store(dx.as<T>() + i, d * (s + v * s * (1.0F - s) * slope), lanes);
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
