#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

// An activation f is described by w with f(x) = x w(x), and by f' from x and w(x). With a gate, it
// may limit gate and `up` first.

/// f and `up` as they are.
struct Unlimited {
  static constexpr bool limits = false;
};

struct Silu : Unlimited {
  static Vec weight(Vec x) { return sigmoid(x); }
  /// Returns d f'(x).
  static Vec times_slope(Vec d, Vec x, Vec w) { return d * w * (1.0F + x * (1.0F - w)); }
};

/// Activation::clamped_swiglu: w(x) = sigmoid(1.702 x).
struct ClampedSilu {
  static constexpr bool limits = true;
  static constexpr float limit = 7.0F, slope = 1.702F;

  static Vec limited_gate(Vec x) { return x > limit ? Vec{} + limit : x; }
  static Vec limited_up(Vec x) { return 1.0F + (x < -limit ? Vec{} - limit : limited_gate(x)); }
  /// Returns d where the gate's or up's own value x counts, else 0.
  static Vec gate_gradient(Vec d, Vec x) { return x > limit ? Vec{} : d; }
  static Vec up_gradient(Vec d, Vec x) { return x < -limit ? Vec{} : gate_gradient(d, x); }

  static Vec weight(Vec x) { return sigmoid(slope * x); }
  static Vec times_slope(Vec d, Vec x, Vec w) { return d * w * (1.0F + slope * x * (1.0F - w)); }
};

/// GELU's tanh form: w(x) = (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh : Unlimited {
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
struct SquaredRelu : Unlimited {
  static Vec weight(Vec x) { return x < 0.0F ? Vec{} : x; }
  static Vec times_slope(Vec d, Vec /*x*/, Vec w) { return 2.0F * d * w; }
};

template <class F>
Vec gate_of(Vec x) {
  if constexpr (F::limits) return F::limited_gate(x);
  return x;
}
template <class F>
Vec up_of(Vec x) {
  if constexpr (F::limits) return F::limited_up(x);
  return x;
}

template <class F, bool gated, class T>
void forward(const Tensor& out, const Tensor& x) {
  const auto cols = out.cols();
  const Rows<T> to(out);
  const Rows<const T> from(x);
  for_each_block(out.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m)
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        const auto v = gate_of<F>(load(from[m] + i, lanes));
        auto result = v * F::weight(v);
        if constexpr (gated) result = result * up_of<F>(load(from[m] + cols + i, lanes));
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
        const auto stored = load(from[m] + i, lanes);
        const auto v = gate_of<F>(stored);
        const auto d = load(slope[m] + i, lanes);
        const auto w = F::weight(v);
        if constexpr (gated) {
          const auto stored_up = load(from[m] + cols + i, lanes);
          const auto up = up_of<F>(stored_up);
          if (out) store(again[m] + i, v * w * up, lanes);
          auto d_gate = F::times_slope(d * up, v, w), d_up = d * v * w;
          if constexpr (F::limits) {
            d_gate = F::gate_gradient(d_gate, stored);
            d_up = F::up_gradient(d_up, stored_up);
          }
          store(to[m] + i, d_gate, lanes);
          store(to[m] + cols + i, d_up, lanes);
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
      case Activation::clamped_swiglu:
        return body.template operator()<ClampedSilu, true, T>();
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
