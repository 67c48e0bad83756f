#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "ops/calls.hpp"

/// Slow, plain double-precision versions of the kernels, written directly from the formulas.
/// Matrices are dense and row-major; M rows, D (F, V, E) columns.
namespace llamesh::test::reference {

using Numbers = std::vector<double>;
using Index = std::size_t;

/// c (m, n) = a (m, k) b (k, n), each factor optionally transposed (then stored (k, m) or (n, k)).
inline Numbers product(const Numbers& a, bool a_transposed, const Numbers& b, bool b_transposed,
                       Index m, Index n, Index k) {
  Numbers c(m * n, 0.0);
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j)
      for (Index p = 0; p < k; ++p)
        c[i * n + j] += (a_transposed ? a[p * m + i] : a[i * k + p]) *
                        (b_transposed ? b[j * k + p] : b[p * n + j]);
  return c;
}

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

inline Numbers rms_norm(const Numbers& x, const Numbers& w, double eps) {
  const auto cols = w.size();
  Numbers y(x.size());
  for (Index row = 0; row < x.size(); row += cols) {
    double squares = 0.0;
    for (Index i = 0; i < cols; ++i) squares += x[row + i] * x[row + i];
    const auto rms = std::sqrt(squares / static_cast<double>(cols) + eps);
    for (Index i = 0; i < cols; ++i) y[row + i] = x[row + i] / rms * w[i];
  }
  return y;
}

inline Numbers layer_norm(const Numbers& x, const Numbers& w, const Numbers& b, double eps) {
  const auto cols = w.size();
  const auto n = static_cast<double>(cols);
  Numbers y(x.size());
  for (Index row = 0; row < x.size(); row += cols) {
    double mean = 0.0, variance = 0.0;
    for (Index i = 0; i < cols; ++i) mean += x[row + i] / n;
    for (Index i = 0; i < cols; ++i) variance += (x[row + i] - mean) * (x[row + i] - mean) / n;
    for (Index i = 0; i < cols; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + eps) * w[i] + b[i];
  }
  return y;
}

/// GELU's tanh form.
inline double gelu(double x) {
  return x / 2.0 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline double activate(double x, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::swiglu:
      return x * sigmoid(x);
    case ops::Activation::clamped_swiglu:
      return std::min(x, 7.0) * sigmoid(1.702 * std::min(x, 7.0));
    case ops::Activation::geglu:
    case ops::Activation::gelu:
      return gelu(x);
    case ops::Activation::xielu:
      throw std::invalid_argument("xIELU has coefficients");
    case ops::Activation::squared_relu:
      return x > 0 ? x * x : 0;
  }
  return x;
}

/// (M, 2 F) with a gate, or (M, F) -> (M, F).
inline Numbers activate(const Numbers& x, Index cols, ops::Activation activation) {
  const auto inputs = static_cast<Index>(ops::inputs_of(activation));
  Numbers y(x.size() / inputs);
  for (Index i = 0; i < y.size(); ++i) {
    const auto at = i / cols * inputs * cols + i % cols;
    y[i] = activate(x[at], activation);
    if (activation == ops::Activation::clamped_swiglu)
      y[i] *= 1 + std::clamp(x[at + cols], -7.0, 7.0);
    else if (inputs == 2)
      y[i] *= x[at + cols];
  }
  return y;
}

/// Rotates the pairs (i, i + E/2) in each head by the angles for the token's position, counted from
/// its document's start if starts are given.
inline Numbers rope(const Numbers& x, const Numbers& cos_sin, Index heads, Index head_dim,
                    double sign, const std::vector<std::int32_t>& starts = {}) {
  const auto half = head_dim / 2;
  const auto positions = cos_sin.size() / head_dim;
  Numbers y(x.size());
  for (Index m = 0; m < x.size() / (heads * head_dim); ++m)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < half; ++i) {
        const auto position = m % positions - (starts.empty() ? 0 : static_cast<Index>(starts[m]));
        const auto at = (m * heads + h) * head_dim + i;
        const auto c = cos_sin[position * head_dim + i];
        const auto s = sign * cos_sin[position * head_dim + half + i];
        y[at] = x[at] * c - x[at + half] * s;
        y[at + half] = x[at + half] * c + x[at] * s;
      }
  return y;
}

/// Returns each row's loss; 0 if the target is negative.
inline Numbers cross_entropy(const Numbers& logits, const std::vector<std::int32_t>& targets) {
  const auto cols = logits.size() / targets.size();
  Numbers losses(targets.size(), 0.0);
  for (Index m = 0; m < targets.size(); ++m) {
    if (targets[m] < 0) continue;
    double most = -std::numeric_limits<double>::infinity();
    for (Index i = 0; i < cols; ++i) most = std::max(most, logits[m * cols + i]);
    double total = 0.0;
    for (Index i = 0; i < cols; ++i) total += std::exp(logits[m * cols + i] - most);
    losses[m] = most + std::log(total) - logits[m * cols + static_cast<Index>(targets[m])];
  }
  return losses;
}

struct Shape {
  Index batch, sequence, heads, kv_heads, head_dim;
  std::vector<std::int32_t> starts = {};  ///< (B, T) document starts; empty: 0
  Index window = 0;                       ///< keys that a query sees at most; 0: all
  Index keys = sequence;                  ///< per sequence
  std::vector<Index> positions = {};      ///< of a row's queries; empty: 0, 1, ...
  double divisor = std::sqrt(static_cast<double>(head_dim));  ///< of scores
  double softcap = 0;                                         ///< of scores; 0: none
  Index value_dim = head_dim;
  Numbers sinks = {};  ///< of each head; empty: none
  Index q_index(Index b, Index t, Index h) const { return query(b, t, h) * head_dim; }
  Index out_index(Index b, Index t, Index h) const { return query(b, t, h) * value_dim; }
  Index k_index(Index b, Index t, Index h) const { return key(b, t, h) * head_dim; }
  Index v_index(Index b, Index t, Index h) const { return key(b, t, h) * value_dim; }
  Index query(Index b, Index t, Index h) const { return (b * sequence + t) * heads + h; }
  Index key(Index b, Index t, Index h) const {
    return (b * keys + t) * kv_heads + h / (heads / kv_heads);
  }
  /// Returns the last key that query t sees: the one in its own position.
  Index last(Index t) const { return positions.empty() ? t : positions[t]; }
  /// Returns the first key that query t sees.
  Index start(Index b, Index t) const {
    const auto document = starts.empty() ? 0 : static_cast<Index>(starts[b * sequence + t]);
    const auto end = last(t) + 1;
    return window > 0 && end > window ? std::max(document, end - window) : document;
  }
};

/// Returns the softmax over query t's scores for the keys that it sees; 0 for earlier ones.
inline Numbers probabilities(const Numbers& q, const Numbers& k, const Shape& s, Index b, Index t,
                             Index h) {
  Numbers p(s.last(t) + 1, 0.0);
  double total = 0.0;
  double most = -std::numeric_limits<double>::infinity();
  for (Index j = s.start(b, t); j <= s.last(t); ++j) {
    for (Index e = 0; e < s.head_dim; ++e)
      p[j] += q[s.q_index(b, t, h) + e] * k[s.k_index(b, j, h) + e];
    p[j] /= s.divisor;
    if (s.softcap > 0) p[j] = s.softcap * std::tanh(p[j] / s.softcap);
    most = std::max(most, p[j]);
  }
  if (!s.sinks.empty()) {
    most = std::max(most, s.sinks[h]);
    total = std::exp(s.sinks[h] - most);
  }
  for (Index j = s.start(b, t); j <= s.last(t); ++j) total += p[j] = std::exp(p[j] - most);
  for (auto& x : p) x /= total;
  return p;
}

inline Numbers attention(const Numbers& q, const Numbers& k, const Numbers& v, const Shape& s) {
  Numbers out(s.batch * s.sequence * s.heads * s.value_dim, 0.0);
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index t = 0; t < s.sequence; ++t) {
        const auto p = probabilities(q, k, s, b, t, h);
        for (Index j = 0; j <= s.last(t); ++j)
          for (Index e = 0; e < s.value_dim; ++e)
            out[s.out_index(b, t, h) + e] += p[j] * v[s.v_index(b, j, h) + e];
      }
  return out;
}

struct AttentionGradients {
  Numbers dq, dk, dv;
};

/// Returns the slope of the softcap at the score of query t and key j.
inline double cap_slope(const Numbers& q, const Numbers& k, const Shape& s, Index b, Index t,
                        Index h, Index j) {
  if (s.softcap == 0) return 1;
  double score = 0.0;
  for (Index e = 0; e < s.head_dim; ++e)
    score += q[s.q_index(b, t, h) + e] * k[s.k_index(b, j, h) + e];
  const auto of_cap = std::tanh(score / s.divisor / s.softcap);
  return 1 - of_cap * of_cap;
}

/// Applies the chain rule one query at a time, with the softmax's full Jacobian.
inline AttentionGradients attention_backward(const Numbers& dout, const Numbers& q,
                                             const Numbers& k, const Numbers& v, const Shape& s) {
  AttentionGradients g{Numbers(q.size()), Numbers(k.size()), Numbers(v.size())};
  const auto root = s.divisor;
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index t = 0; t < s.sequence; ++t) {
        const auto p = probabilities(q, k, s, b, t, h);
        const auto at = s.q_index(b, t, h);
        Numbers dp(p.size(), 0.0);
        double mean = 0.0;
        for (Index j = 0; j <= s.last(t); ++j) {
          for (Index e = 0; e < s.value_dim; ++e) {
            dp[j] += dout[s.out_index(b, t, h) + e] * v[s.v_index(b, j, h) + e];
            g.dv[s.v_index(b, j, h) + e] += p[j] * dout[s.out_index(b, t, h) + e];
          }
          mean += p[j] * dp[j];
        }
        for (Index j = s.start(b, t); j <= s.last(t); ++j)
          for (Index e = 0; e < s.head_dim; ++e) {
            const auto dscore = p[j] * (dp[j] - mean) / root * cap_slope(q, k, s, b, t, h, j);
            g.dq[at + e] += dscore * k[s.k_index(b, j, h) + e];
            g.dk[s.k_index(b, j, h) + e] += dscore * q[at + e];
          }
      }
  return g;
}

/// Returns the gradient of sum(weights * f(x)) with respect to x by central differences,
/// independent of any backward formula.
template <class F>
Numbers numerical_gradient(const F& f, Numbers x, const Numbers& weights, double step = 1e-5) {
  const auto value = [&] {
    const auto y = f(x);
    double total = 0.0;
    for (Index i = 0; i < y.size(); ++i) total += weights[i] * y[i];
    return total;
  };
  Numbers gradient(x.size());
  for (Index i = 0; i < x.size(); ++i) {
    const auto kept = x[i];
    x[i] = kept + step;
    const auto above = value();
    x[i] = kept - step;
    const auto below = value();
    x[i] = kept;
    gradient[i] = (above - below) / (2.0 * step);
  }
  return gradient;
}

}  // namespace llamesh::test::reference
