#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr float half = 0.5F;       // beta in the paper
constexpr float highest = -1e-6F;  // below 0, so that exp(x) - 1 keeps digits

float value_of(const Tensor& scalar) {
  float value = 0;
  with_type(scalar.dtype(),
            [&]<class T>(std::type_identity<T>) { value = float(*scalar.as<T>()); });
  return value;
}

float softplus(float x) {
  return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x)));
}

/// Returns exp(x) - 1 - x for x <= 0, with a relative error below 1e-6: near 0 by its Taylor
/// polynomial.
Vec exp_from_order_2(Vec x) {
  Vec p = broadcast(1.0F / 40320.0F);
  p = p * x + 1.0F / 5040.0F;
  p = p * x + 1.0F / 720.0F;
  p = p * x + 1.0F / 120.0F;
  p = p * x + 1.0F / 24.0F;
  p = p * x + 1.0F / 6.0F;
  p = p * x + 0.5F;
  const Vec near_0 = p * x * x, far = exp(x) - 1.0F - x;
  return x > -0.5F ? near_0 : far;
}

/// f(x) = times p or n, plus x / 2.
struct Xielu {
  explicit Xielu(const XieluCall& c)
      : p(softplus(value_of(c.alpha_p))), n(half + softplus(value_of(c.alpha_n))) {}
  float p, n;

  struct Factors {
    Vec of_p, of_n;
    Vec slope;  ///< f'(x)
  };
  /// Returns what p and n multiply; one is 0.
  Factors at(Vec x) const {
    const auto positive = x > 0.0F;
    const Vec low = x < highest ? x : broadcast(highest);
    const Vec rest = exp_from_order_2(low);
    const Vec below = x < highest ? rest + low : broadcast(-1.0F);
    return {positive ? x * x : Vec{}, positive ? Vec{} : rest + (low - x),
            half + (positive ? 2.0F * p * x : n * below)};
  }
  Vec value(Vec x, const Factors& f) const { return p * f.of_p + n * f.of_n + half * x; }
};

void check(const XieluCall& c) {
  expects(
      c.alpha_p.numel() == 1 && c.alpha_n.numel() == 1 && (!c.out || same_matrix_shape(c.out, c.x)),
      "xielu shapes");
}

/// d_alpha = or += the gradient of softplus(alpha), `sum`, times its slope.
void write_gradient(const Tensor& d_alpha, Accumulate accumulate, const Tensor& alpha, double sum) {
  if (!d_alpha) return;
  with_type(d_alpha.dtype(), [&]<class T>(std::type_identity<T>) {
    auto* to = d_alpha.as<T>();
    const auto before = accumulate == Accumulate::yes ? float(*to) : 0.0F;
    *to = T(before + static_cast<float>(sum) / (1 + std::exp(-value_of(alpha))));
  });
}

template <class T>
void backward(const XieluCall& c, const XieluGradients& g) {
  const auto cols = c.x.cols();
  const Xielu f(c);
  const Rows<T> to(g.dx), again(c.out);
  const Rows<const T> slope(g.dout), from(c.x);
  // Each block of rows has its own sums, so that the result does not depend on the threads.
  constexpr std::int64_t max_blocks = 64;
  const auto block = (c.x.rows() + max_blocks - 1) / max_blocks;
  std::array<double, max_blocks> sums_p{}, sums_n{};
  for_each_block(c.x.rows(), block, [&](std::int64_t first, std::int64_t last) {
    Vec sum_p{}, sum_n{};
    for (auto m = first; m < last; ++m)
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        const auto x = load(from[m] + i, lanes), d = load(slope[m] + i, lanes);
        const auto factors = f.at(x);
        sum_p += d * factors.of_p;
        sum_n += d * factors.of_n;
        if (c.out) store(again[m] + i, f.value(x, factors), lanes);
        store(to[m] + i, d * factors.slope, lanes);
      });
    const auto index = static_cast<std::size_t>(first / block);
    sums_p[index] = sum(sum_p);
    sums_n[index] = sum(sum_n);
  });
  write_gradient(g.d_alpha_p, g.accumulate_p, c.alpha_p,
                 std::accumulate(sums_p.begin(), sums_p.end(), 0.0));
  write_gradient(g.d_alpha_n, g.accumulate_n, c.alpha_n,
                 std::accumulate(sums_n.begin(), sums_n.end(), 0.0));
}

}  // namespace

void xielu(Stream& stream, const XieluCall& c) {
  check(c);
  stream.run([=] {
    with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Xielu f(c);
      const Rows<T> to(c.out);
      const Rows<const T> from(c.x);
      for_each_block(c.x.rows(), rows_per_block(c.x.cols()), [&](auto first, auto last) {
        for (auto m = first; m < last; ++m)
          for_each_vec(c.x.cols(), [&](std::int64_t i, auto lanes) {
            const auto x = load(from[m] + i, lanes);
            store(to[m] + i, f.value(x, f.at(x)), lanes);
          });
      });
    });
  });
}

void xielu_backward(Stream& stream, const XieluCall& c, const XieluGradients& g) {
  check(c);
  expects(same_matrix_shape(g.dout, c.x) && same_matrix_shape(g.dx, c.x) &&
              (!g.d_alpha_p || g.d_alpha_p.numel() == 1) &&
              (!g.d_alpha_n || g.d_alpha_n.numel() == 1),
          "xielu_backward shapes");
  stream.run(
      [=] { with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { backward<T>(c, g); }); });
}

}  // namespace llamesh::ops::cpu
