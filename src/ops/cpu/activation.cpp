#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

// An activation f is described by w with f(x) = x w(x), and by f' from x and w(x).

struct Silu {
  static Vec weight(Vec x) { return sigmoid(x); }
  /// Returns d f'(x).
  static Vec times_slope(Vec d, Vec x, Vec w) { return d * w * (1.0F + x * (1.0F - w)); }
};

/// GELU's tanh form: w(x) = (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float cubic = 0.044715F;
  static constexpr float twice_sqrt_2_over_pi = 1.5957691216057308F;

  static Vec weight(Vec x) {
    return 0.5F + 0.5F * cpu::tanh(0.5F * twice_sqrt_2_over_pi * x * (1.0F + cubic * x * x));
  }
  static Vec times_slope(Vec d, Vec x, Vec w) {
    const Vec du = twice_sqrt_2_over_pi * (1.0F + 3.0F * cubic * x * x);
    return d * (w + x * w * (1.0F - w) * du);
  }
};

/// w(x) = max(x, 0).
struct SquaredRelu {
  static Vec weight(Vec x) { return x < 0.0F ? Vec{} : x; }
  static Vec times_slope(Vec d, Vec /*x*/, Vec w) { return 2.0F * d * w; }
};

template <class F, bool gated, class T>
void forward(const Tensor& out, const Tensor& x) {
  const auto cols = out.cols();
  const Rows<T> to(out);
  const Rows<const T> from(x);
  for_each_block(out.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m)
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        const auto v = load(from[m] + i, lanes);
        auto result = v * F::weight(v);
        if constexpr (gated) result = result * load(from[m] + cols + i, lanes);
        store(to[m] + i, result, lanes);
      });
  });
}

template <class F, bool gated, class T>
void backward(const Tensor& dx, const Tensor& out, const Tensor& dout, const Tensor& x) {
  const auto cols = dout.cols();
  const Rows<T> to(dx), again(out);
  const Rows<const T> slope(dout), from(x);
  for_each_block(dout.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m)
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        const auto v = load(from[m] + i, lanes);
        const auto d = load(slope[m] + i, lanes);
        const auto w = F::weight(v);
        if constexpr (gated) {
          const auto up = load(from[m] + cols + i, lanes);
          if (out) store(again[m] + i, v * w * up, lanes);
          store(to[m] + i, F::times_slope(d * up, v, w), lanes);
          store(to[m] + cols + i, d * v * w, lanes);
        } else {
          if (out) store(again[m] + i, v * w, lanes);
          store(to[m] + i, F::times_slope(d, v, w), lanes);
        }
      });
  });
}

/// Calls body<F, gated, T>().
template <class Body>
void with_activation(Activation activation, DType dtype, const Body& body) {
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    switch (activation) {
      case Activation::swiglu:
        return body.template operator()<Silu, true, T>();
      case Activation::geglu:
        return body.template operator()<GeluTanh, true, T>();
      case Activation::gelu:
        return body.template operator()<GeluTanh, false, T>();
      case Activation::squared_relu:
        return body.template operator()<SquaredRelu, false, T>();
      case Activation::xielu:
        expects(false, "xIELU has coefficients; call xielu()");
    }
  });
}

}  // namespace

void activate(Stream& stream, Tensor out, Tensor x, Activation activation) {
  expects(x.cols() == inputs_of(activation) * out.cols() && x.rows() == out.rows(),
          "activate shapes");
  stream.run([=] {
    with_activation(activation, out.dtype(),
                    [&]<class F, bool gated, class T>() { forward<F, gated, T>(out, x); });
  });
}

void activate_backward(Stream& stream, Tensor dx, Tensor out, Tensor dout, Tensor x,
                       Activation activation) {
  expects(x.cols() == inputs_of(activation) * dout.cols() && x.rows() == dout.rows() &&
              same_matrix_shape(dx, x) && (!out || same_matrix_shape(out, dout)),
          "activate_backward shapes");
  stream.run([=] {
    with_activation(activation, dout.dtype(), [&]<class F, bool gated, class T>() {
      backward<F, gated, T>(dx, out, dout, x);
    });
  });
}

}  // namespace llamesh::ops::cpu
