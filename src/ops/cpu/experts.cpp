#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Returns log(sum(exp(logits))).
template <class T>
float softmax(const T* logits, float* probabilities, std::int64_t count) {
  float most = float(logits[0]);
  for (std::int64_t e = 1; e < count; ++e) most = std::max(most, float(logits[e]));
  Vec sums{};
  for_each_vec(count, [&](std::int64_t e, auto lanes) {
    const auto p = masked(exp(load(logits + e, lanes) - most), lanes);
    store(probabilities + e, p, lanes);
    sums += p;
  });
  const float total = sum(sums);
  for (std::int64_t e = 0; e < count; ++e) probabilities[e] /= total;
  return most + std::log(total);
}

/// One token's part of a RouteCall: N probabilities, k experts and weights.
struct Token {
  const float* probabilities;
  std::int64_t count;
  std::span<std::int32_t> experts;

  float chosen(std::size_t j) const { return probabilities[experts[j]]; }
  float sum_chosen() const {
    float total = 0;
    for (std::size_t j = 0; j < experts.size(); ++j) total += chosen(j);
    return total;
  }
};

/// Writes the most probable experts, the most probable first. They are distinct even with NaN.
void choose(const Token& token) {
  for (std::size_t j = 0; j < token.experts.size(); ++j) {
    const auto taken = token.experts.first(j);
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < token.count; ++e) {
      if (std::ranges::find(taken, e) != taken.end()) continue;
      if (best < 0 || token.probabilities[e] > token.probabilities[best]) best = e;
    }
    token.experts[j] = best;
  }
}

/// Calls body(m, token) for all tokens.
template <class Body>
void for_each_token(const RouteCall& c, const Body& body) {
  const auto k = c.experts.cols(), experts = c.logits.cols();
  const auto* probabilities = c.probabilities.as<float>();
  auto* chosen = c.experts.as<std::int32_t>();
  for_each_block(c.logits.rows(), rows_per_block(experts, 4096), [&](auto first, auto last) {
    for (auto m = first; m < last; ++m)
      body(m, Token{probabilities + m * experts, experts,
                    std::span(chosen + m * k, static_cast<std::size_t>(k))});
  });
}

void check(const RouteCall& c) {
  expects(same_matrix_shape(c.logits, c.probabilities) && same_matrix_shape(c.experts, c.weights) &&
              c.experts.rows() == c.logits.rows() && c.probabilities.dense() && c.experts.dense() &&
              c.weights.dense(),
          "route shapes");
  expects(!c.log_sum_exp || c.log_sum_exp.numel() == c.logits.rows(), "route shapes");
  expects(1 <= c.experts.cols() && c.experts.cols() <= c.logits.cols(), "{} of {} experts",
          c.experts.cols(), c.logits.cols());
}

/// Gradients that auxiliary losses add: of a token's probabilities, (N) or null, and of the log of
/// the sum of its exponentials.
struct AddedGradients {
  const float* dprobabilities;
  float d_log_sum_exp;
};

/// Writes the gradient of a token's logits: p_e (dp_e - sum_f p_f dp_f + d_log_sum_exp). dp is the
/// gradient of its experts' weights plus the added gradients.
template <class T>
void backward(const Token& token, const float* dweights, const AddedGradients& more, bool normalize,
              T* dlogits) {
  const auto* added = more.dprobabilities;
  const float total = normalize ? token.sum_chosen() : 1.0F;
  float mean = 0;  // of dweights, where the weights are normalized
  if (normalize)
    for (std::size_t j = 0; j < token.experts.size(); ++j)
      mean += dweights[j] * token.chosen(j) / total;
  const auto of_chosen = [&](std::size_t j) { return (dweights[j] - mean) / total; };
  float dot = 0;
  for (std::size_t j = 0; j < token.experts.size(); ++j) dot += token.chosen(j) * of_chosen(j);
  if (added)
    for (std::int64_t e = 0; e < token.count; ++e) dot += token.probabilities[e] * added[e];
  dot -= more.d_log_sum_exp;
  for (std::int64_t e = 0; e < token.count; ++e)
    dlogits[e] = T(token.probabilities[e] * ((added ? added[e] : 0.0F) - dot));
  for (std::size_t j = 0; j < token.experts.size(); ++j) {
    const auto e = token.experts[j];
    dlogits[e] = T(token.probabilities[e] * ((added ? added[e] : 0.0F) + of_chosen(j) - dot));
  }
}

}  // namespace

void route(Stream& stream, const RouteCall& c) {
  check(c);
  stream.run([=] {
    with_type(c.logits.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<const T> logits(c.logits);
      auto* weights = c.weights.as<float>();
      for_each_token(c, [&](std::int64_t m, const Token& token) {
        const float log_sum_exp =
            softmax(logits[m], c.probabilities.as<float>() + m * token.count, token.count);
        if (c.log_sum_exp) c.log_sum_exp.as<float>()[m] = log_sum_exp;
        choose(token);
        const float total = c.normalize ? token.sum_chosen() : 1.0F;
        auto* weight = weights + m * std::ssize(token.experts);
        for (std::size_t j = 0; j < token.experts.size(); ++j) weight[j] = token.chosen(j) / total;
      });
    });
  });
}

void route_backward(Stream& stream, const RouteCall& c, const RouteGradients& g) {
  check(c);
  expects(same_matrix_shape(g.dweights, c.weights) && g.dweights.dense() &&
              same_matrix_shape(g.dlogits, c.logits) &&
              (!g.dprobabilities || g.dprobabilities.numel() == c.logits.cols()) &&
              (g.z_factor == 0 || c.log_sum_exp),
          "route_backward shapes");
  stream.run([=] {
    with_type(g.dlogits.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> dlogits(g.dlogits);
      const auto* dweights = g.dweights.as<float>();
      const auto* added = g.dprobabilities ? g.dprobabilities.as<float>() : nullptr;
      for_each_token(c, [&](std::int64_t m, const Token& token) {
        const float dz = g.z_factor == 0 ? 0 : g.z_factor * c.log_sum_exp.as<float>()[m];
        backward(token, dweights + m * std::ssize(token.experts), {added, dz}, c.normalize,
                 dlogits[m]);
      });
    });
  });
}

/// Runs on one thread, in token order and in double, so the sums are exact up to a final rounding.
void sum_routes(Stream& stream, const RouteCall& c, const RouteSums& s) {
  check(c);
  const auto count = c.logits.cols();
  expects(s.counts.numel() == count && s.probabilities.numel() == count && s.squares.numel() == 1,
          "sum_routes shapes");
  stream.run([=] {
    for (const auto e : c.experts.span<std::int32_t>()) ++s.counts.as<float>()[e];
    std::vector<double> sums(static_cast<std::size_t>(count));
    const auto* row = c.probabilities.as<float>();
    for (std::int64_t m = 0; m < c.logits.rows(); ++m, row += count)
      for (std::int64_t e = 0; e < count; ++e) sums[static_cast<std::size_t>(e)] += row[e];
    auto* total = s.probabilities.as<float>();
    for (std::int64_t e = 0; e < count; ++e)
      total[e] = static_cast<float>(total[e] + sums[static_cast<std::size_t>(e)]);
    if (!c.log_sum_exp) return;
    double squares = *s.squares.as<float>();
    for (const double z : c.log_sum_exp.span<float>()) squares += z * z;
    *s.squares.as<float>() = static_cast<float>(squares);
  });
}

void sort_by_expert(Stream& stream, const ExpertOrder& order, Tensor experts) {
  expects(order.slots.numel() == experts.numel() && order.places.numel() == experts.numel() &&
              order.starts.numel() >= 2,
          "sort_by_expert shapes");
  stream.run([=] {
    const auto expert = experts.span<std::int32_t>();
    const auto count = static_cast<std::size_t>(order.starts.numel() - 1);
    const auto starts = order.starts.span<std::int32_t>();
    const auto slots = order.slots.span<std::int32_t>();
    const auto places = order.places.span<std::int32_t>();
    std::ranges::fill(starts, 0);
    for (const auto e : expert) {
      expects(0 <= e && e < static_cast<std::int32_t>(count), "expert {} of {}", e, count);
      ++starts[static_cast<std::size_t>(e) + 1];
    }
    for (std::size_t e = 1; e <= count; ++e) starts[e] += starts[e - 1];
    // Counts each expert's start up to its end, which is the next one's start.
    for (std::size_t slot = 0; slot < expert.size(); ++slot) {
      const auto place = starts[static_cast<std::size_t>(expert[slot])]++;
      slots[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(slot);
      places[slot] = place;
    }
    std::ranges::move_backward(starts.first(count), starts.end());
    starts[0] = 0;
  });
}

void dispatch_tokens(Stream& stream, Tensor rows, Tensor x, Tensor slots) {
  expects(rows.rows() == slots.numel() && rows.cols() == x.cols() && x.rows() > 0 &&
              slots.numel() % x.rows() == 0,
          "dispatch_tokens shapes");
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> to(rows);
      const Rows<const T> from(x);
      const auto* slot = slots.as<std::int32_t>();
      const auto k = slots.numel() / x.rows(), cols = x.cols();
      for_each_block(rows.rows(), rows_per_block(cols), [&](auto first, auto last) {
        for (auto i = first; i < last; ++i) std::copy_n(from[slot[i] / k], cols, to[i]);
      });
    });
  });
}

void combine_tokens(Stream& stream, Tensor y, Tensor rows, Tensor weights, Tensor places,
                    Accumulate accumulate) {
  expects(rows.rows() == places.numel() && rows.cols() == y.cols() && y.rows() > 0 &&
              places.numel() % y.rows() == 0 && (!weights || weights.numel() == places.numel()),
          "combine_tokens shapes");
  stream.run([=] {
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> to(y);
      const Rows<const T> from(rows);
      const auto* weight = weights ? weights.as<float>() : nullptr;
      const auto* place = places.as<std::int32_t>();
      const auto k = places.numel() / y.rows(), cols = y.cols();
      for_each_block(y.rows(), rows_per_block(cols * k), [&](auto first, auto last) {
        for (auto m = first; m < last; ++m)
          for_each_vec(cols, [&](std::int64_t i, auto lanes) {
            auto total = accumulate == Accumulate::yes ? load(to[m] + i, lanes) : Vec{};
            for (auto slot = m * k; slot < (m + 1) * k; ++slot)
              total += (weight ? weight[slot] : 1.0F) * load(from[place[slot]] + i, lanes);
            store(to[m] + i, total, lanes);
          });
      });
    });
  });
}

void weigh_rows_backward(Stream& stream, const WeighRowsBackwardCall& c) {
  const auto count = c.activated.rows();
  expects(c.weights.numel() == count && c.dweights.numel() == count &&
              same_matrix_shape(c.d_activated, c.activated) && c.d_up.rows() == count,
          "weigh_rows_backward shapes");
  stream.run([=] {
    with_type(c.activated.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> activated(c.activated), d_up(c.d_up);
      const Rows<const T> d_activated(c.d_activated);
      for_each_block(count, rows_per_block(c.d_up.cols()), [&](auto first, auto last) {
        for (auto row = first; row < last; ++row) {
          const float weight = c.weights.as<float>()[row];
          Vec dots{};
          for_each_vec(c.activated.cols(), [&](std::int64_t i, auto lanes) {
            const auto a = load(activated[row] + i, lanes);
            dots += a * load(d_activated[row] + i, lanes);
            store(activated[row] + i, weight * a, lanes);
          });
          c.dweights.as<float>()[row] = sum(dots);
          for_each_vec(c.d_up.cols(), [&](std::int64_t i, auto lanes) {
            store(d_up[row] + i, weight * load(d_up[row] + i, lanes), lanes);
          });
        }
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
