#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>
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

template <class T>
void sigmoids(const T* logits, float* scores, std::int64_t count) {
  for_each_vec(count, [&](std::int64_t e, auto lanes) {
    store(scores + e, sigmoid(load(logits + e, lanes)), lanes);
  });
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

/// Writes the experts with the highest keys, the highest first. They are distinct even with NaN.
void choose(const Token& token, const float* keys) {
  for (std::size_t j = 0; j < token.experts.size(); ++j) {
    const auto taken = token.experts.first(j);
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < token.count; ++e) {
      if (std::ranges::find(taken, e) != taken.end()) continue;
      if (best < 0 || keys[e] > keys[best]) best = e;
    }
    token.experts[j] = best;
  }
}

constexpr float lowest = -std::numeric_limits<float>::infinity();

/// Returns the highest, or the two highest together.
float key_of_group(std::span<const float> keys, RouterScore score) {
  float first = lowest, second = lowest;
  for (const float key : keys) {
    second = std::max(second, std::min(first, key));
    first = std::max(first, key);
  }
  return score == RouterScore::sigmoid && keys.size() > 1 ? first + second : first;
}

/// Lowers all keys outside the best groups. Equal groups count by their number.
void keep_best_groups(std::span<float> keys, const RouteCall& c) {
  const auto size = keys.size() / static_cast<std::size_t>(c.groups);
  std::vector<std::pair<float, std::span<float>>> by_group;
  for (std::size_t first = 0; first < keys.size(); first += size) {
    const auto group = keys.subspan(first, size);
    by_group.emplace_back(key_of_group(group, c.score), group);
  }
  std::ranges::stable_sort(by_group, std::greater(), [](const auto& group) { return group.first; });
  const auto taken = static_cast<std::size_t>(c.groups_taken);
  for (const auto& [key, group] : std::span(by_group).subspan(taken))
    std::ranges::fill(group, lowest);
}

/// Returns what a token's experts are chosen by. Valid until the thread's next call.
const float* keys_of(const RouteCall& c, const Token& token) {
  if (!c.bias && c.groups == c.groups_taken) return token.probabilities;
  thread_local std::vector<float> keys;
  keys.assign(token.probabilities, token.probabilities + token.count);
  const auto* bias = c.bias ? c.bias.as<float>() : nullptr;
  for (std::size_t e = 0; bias != nullptr && e < keys.size(); ++e) keys[e] += bias[e];
  if (c.groups > c.groups_taken) keep_best_groups(keys, c);
  return keys.data();
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

void check_groups(const RouteCall& c) {
  expects(1 <= c.groups_taken && c.groups_taken <= c.groups && c.groups <= 32 &&
              c.logits.cols() % c.groups == 0 &&
              c.experts.cols() <= c.logits.cols() / c.groups * c.groups_taken,
          "{} experts in {} of {} groups", c.logits.cols(), c.groups_taken, c.groups);
  expects(!c.bias || c.bias.numel() == c.logits.cols(), "route shapes");
  expects(c.score == RouterScore::softmax || !c.log_sum_exp, "a sigmoid has no log_sum_exp");
}

/// What a token's weights are divided by. transformers adds 1e-20 to a sum of sigmoids.
float total_of(const RouteCall& c, const Token& token) {
  if (!c.normalize) return 1;
  return token.sum_chosen() + (c.score == RouterScore::sigmoid ? 1e-20F : 0.0F);
}

void check(const RouteCall& c) {
  expects(same_matrix_shape(c.logits, c.probabilities) && same_matrix_shape(c.experts, c.weights) &&
              c.experts.rows() == c.logits.rows() && c.probabilities.dense() && c.experts.dense() &&
              c.weights.dense(),
          "route shapes");
  expects(!c.log_sum_exp || c.log_sum_exp.numel() == c.logits.rows(), "route shapes");
  expects(1 <= c.experts.cols() && c.experts.cols() <= c.logits.cols(), "{} of {} experts",
          c.experts.cols(), c.logits.cols());
  check_groups(c);
}

/// Gradients that auxiliary losses add: of a token's probabilities, (N) or null, and of the log of
/// the sum of its exponentials.
struct AddedGradients {
  const float* dprobabilities;
  float d_log_sum_exp;
};

/// Gradients for the scores that a token's experts have, from its weights' gradients.
class ChosenGradients {
 public:
  ChosenGradients(const RouteCall& c, const Token& token, const float* dweights)
      : dweights_(dweights), scale_(c.scale), total_(total_of(c, token)) {
    if (!c.normalize) return;
    for (std::size_t j = 0; j < token.experts.size(); ++j)
      mean_ += dweights[j] * token.chosen(j) / total_;
  }
  float operator()(std::size_t j) const { return scale_ * ((dweights_[j] - mean_) / total_); }

 private:
  const float* dweights_;
  float scale_, total_;
  float mean_ = 0;  ///< of dweights, where the weights are normalized
};

/// Writes the gradient of a token's logits with softmax: p_e (dp_e - sum_f p_f dp_f +
/// d_log_sum_exp). dp is the gradient of its experts' weights plus the added gradients.
template <class T>
void softmax_backward(const Token& token, const ChosenGradients& of_chosen,
                      const AddedGradients& more, T* dlogits) {
  const auto* added = more.dprobabilities;
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

/// Likewise with sigmoid: p_e (1 - p_e) dp_e, which is 0 for experts that are not chosen.
template <class T>
void sigmoid_backward(const Token& token, const ChosenGradients& of_chosen, T* dlogits) {
  std::fill_n(dlogits, token.count, T(0.0F));
  for (std::size_t j = 0; j < token.experts.size(); ++j) {
    const float p = token.chosen(j);
    dlogits[token.experts[j]] = T(of_chosen(j) * p * (1 - p));
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
        auto* scores = c.probabilities.as<float>() + m * token.count;
        if (c.score == RouterScore::sigmoid) {
          sigmoids(logits[m], scores, token.count);
        } else {
          const float log_sum_exp = softmax(logits[m], scores, token.count);
          if (c.log_sum_exp) c.log_sum_exp.as<float>()[m] = log_sum_exp;
        }
        choose(token, keys_of(c, token));
        const float total = total_of(c, token);
        auto* weight = weights + m * std::ssize(token.experts);
        for (std::size_t j = 0; j < token.experts.size(); ++j)
          weight[j] = c.scale * (token.chosen(j) / total);
      });
    });
  });
}

void route_backward(Stream& stream, const RouteCall& c, const RouteGradients& g) {
  check(c);
  expects(same_matrix_shape(g.dweights, c.weights) && g.dweights.dense() &&
              same_matrix_shape(g.dlogits, c.logits) &&
              (!g.dprobabilities || g.dprobabilities.numel() == c.logits.cols()) &&
              (g.z_factor == 0 || c.log_sum_exp) &&
              (c.score == RouterScore::softmax || !g.dprobabilities),
          "route_backward shapes");
  stream.run([=] {
    with_type(g.dlogits.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> dlogits(g.dlogits);
      const auto* dweights = g.dweights.as<float>();
      const auto* added = g.dprobabilities ? g.dprobabilities.as<float>() : nullptr;
      for_each_token(c, [&](std::int64_t m, const Token& token) {
        const float dz = g.z_factor == 0 ? 0 : g.z_factor * c.log_sum_exp.as<float>()[m];
        const ChosenGradients of_chosen(c, token, dweights + m * std::ssize(token.experts));
        if (c.score == RouterScore::sigmoid)
          sigmoid_backward(token, of_chosen, dlogits[m]);
        else
          softmax_backward(token, of_chosen, {added, dz}, dlogits[m]);
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

void gate_rows(Stream& stream, Tensor y, Tensor gates) {
  expects(gates.dense() && (!y || y.rows() == gates.numel()), "gate_rows shapes");
  stream.run([=] {
    for (auto& gate : gates.span<float>()) gate = 1 / (1 + std::exp(-gate));
    if (!y) return;
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> rows(y);
      for_each_block(y.rows(), rows_per_block(y.cols()), [&](auto first, auto last) {
        for (auto row = first; row < last; ++row)
          for_each_vec(y.cols(), [&](std::int64_t i, auto lanes) {
            store(rows[row] + i, gates.as<float>()[row] * load(rows[row] + i, lanes), lanes);
          });
      });
    });
  });
}

void gate_rows_backward(Stream& stream, Tensor dlogits, Tensor dgates, Tensor gates) {
  expects(dlogits.dense() && dlogits.numel() == gates.numel() && dgates.numel() == gates.numel(),
          "gate_rows_backward shapes");
  stream.run([=] {
    with_type(dlogits.dtype(), [&]<class T>(std::type_identity<T>) {
      for (std::int64_t m = 0; m < gates.numel(); ++m) {
        const float gate = gates.as<float>()[m];
        dlogits.as<T>()[m] = T(dgates.as<float>()[m] * gate * (1 - gate));
      }
    });
  });
}

}  // namespace llamesh::ops::cpu
