#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "core/philox.hpp"
#include "optim/sharded_model.hpp"

namespace llamesh::optim {
namespace {

using test::MeshSizes;
using test::ShardedModel;
using test::tiny_model;

constexpr std::uint64_t seed = 20240611;
constexpr float initial_deviation = 0.5F;

/// Returns a parameter's gradient in a step, with norms from about 1.6 to about 160, so that the
/// clipping factor differs every time.
std::vector<float> gradient_of(const model::Parameter& parameter, std::int64_t step) {
  std::vector<float> g(static_cast<std::size_t>(parameter.numel()));
  const auto deviation = static_cast<float>(std::pow(10.0, static_cast<double>(step % 3) - 1.5));
  fill_normal(g.data(), 0, parameter.numel(), seed + static_cast<std::uint64_t>(step),
              parameter.name, deviation);
  return g;
}

/// The whole model and its optimizer on one rank, in double precision, element by element.
class Reference {
 public:
  Reference(const model::ParameterTable& table, const OptimizerOptions& options)
      : table_(table), options_(options) {
    for (const auto& p : table.parameters) {
      std::vector<float> values(static_cast<std::size_t>(p.numel()), 1.0F);
      if (p.shape.size() == 2)
        fill_normal(values.data(), 0, p.numel(), seed, p.name, initial_deviation);
      values_.emplace_back(values.begin(), values.end());
      first_.emplace_back(values.size(), 0.0);
      second_.emplace_back(values.size(), 0.0);
    }
  }

  double norm(std::int64_t step) const {
    double sum = 0;
    for (const auto& p : table_.parameters)
      for (const double g : gradient_of(p, step)) sum += g * g;
    return std::sqrt(sum);
  }

  void step(double lr, std::int64_t step) {
    const double n = norm(step);
    const double clip =
        options_.clip_norm > 0 && n > options_.clip_norm ? options_.clip_norm / (n + 1e-6) : 1;
    for (std::size_t p = 0; p < values_.size(); ++p) {
      const auto g = gradient_of(table_.parameters[p], step);
      const double decay = table_.parameters[p].shape.size() == 2 ? options_.weight_decay : 0;
      for (std::size_t i = 0; i < g.size(); ++i) {
        if (options_.name == OptimizerName::adamw)
          adamw(p, i, clip * g[i], decay, lr, static_cast<double>(step));
        else
          sgd(p, i, clip * g[i], decay, lr);
      }
    }
  }

  double value(model::ParameterId id, std::int64_t i) const { return at(values_, id, i); }
  double moment(std::size_t which, model::ParameterId id, std::int64_t i) const {
    return at(which == 0 ? first_ : second_, id, i);
  }

 private:
  using Numbers = std::vector<std::vector<double>>;
  static double at(const Numbers& numbers, model::ParameterId id, std::int64_t i) {
    return numbers[model::index(id)][static_cast<std::size_t>(i)];
  }
  void adamw(std::size_t p, std::size_t i, double g, double decay, double lr, double t) {
    double& m = first_[p][i];
    double& v = second_[p][i];
    m = options_.beta1 * m + (1 - options_.beta1) * g;
    v = options_.beta2 * v + (1 - options_.beta2) * g * g;
    const double mean = m / (1 - std::pow(options_.beta1, t));
    const double square = v / (1 - std::pow(options_.beta2, t));
    values_[p][i] -= lr * decay * values_[p][i];
    values_[p][i] -= lr * mean / (std::sqrt(square) + options_.eps);
  }
  void sgd(std::size_t p, std::size_t i, double g, double decay, double lr) {
    first_[p][i] = options_.beta1 * first_[p][i] + g + decay * values_[p][i];
    values_[p][i] -= lr * first_[p][i];
  }

  const model::ParameterTable& table_;
  OptimizerOptions options_;
  Numbers values_, first_, second_;
};

void set_gradients(ShardedModel& sharded, std::int64_t step) {
  sharded.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
    const auto whole = gradient_of(sharded.table()[piece.parameter], step);
    auto* const to = sharded.state().gradients().shards[unit].as<float>() + piece.offset;
    for_each_run(sharded.table()[piece.parameter].shape,
                 sharded.layout().range(piece, sharded.state().rank()),
                 [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                   std::copy_n(whole.begin() + begin, count, to + at);
                 });
  });
}

void expect_close(float seen, double expected, const std::string& what) {
  ASSERT_NEAR(seen, expected, 1e-5 * std::max(0.2, std::abs(expected))) << what;
}

void expect_same(ShardedModel& sharded, const Reference& reference) {
  const auto& moments = sharded.state().moments();
  sharded.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      const auto what =
          fmt::format("{} [{}]", sharded.table()[piece.parameter].name, piece.begin + i);
      const std::int64_t at = piece.offset + i;
      expect_close(sharded.state().masters().shards[unit].as<float>()[at],
                   reference.value(piece.parameter, piece.begin + i), what);
      for (std::size_t m = 0; m < moments.size(); ++m)
        expect_close(moments[m].shards[unit].as<float>()[at],
                     reference.moment(m, piece.parameter, piece.begin + i),
                     moments[m].name + " of " + what);
    }
  });
}

void expect_zero_padding(ShardedModel& sharded) {
  for (std::size_t u = 0; u < sharded.layout().units().size(); ++u) {
    EXPECT_EQ(sharded.padding_of(u, sharded.state().masters().shards[u]), 0.0F) << "unit " << u;
    EXPECT_EQ(sharded.padding_of(u, sharded.state().gradients().shards[u]), 0.0F) << "unit " << u;
    for (const auto& moment : sharded.state().moments())
      EXPECT_EQ(sharded.padding_of(u, moment.shards[u]), 0.0F) << moment.name << " of unit " << u;
  }
}

class EveryMesh : public testing::TestWithParam<MeshSizes> {
 protected:
  void SetUp() override {
    if (GetParam().replicate * GetParam().shard != test::world().size())
      GTEST_SKIP() << "a mesh of another number of ranks";
  }

  /// Compares five steps with the reference, after each one.
  static void compare(const OptimizerOptions& options) {
    ShardedModel sharded(tiny_model(), GetParam(), options);
    sharded.state().initialize(seed, initial_deviation);
    Optimizer optimizer(options, sharded.state(), sharded.mesh());
    Reference reference(sharded.table(), options);
    expect_same(sharded, reference);
    for (std::int64_t step = 1; step <= 5; ++step) {
      const double lr = 0.02 / static_cast<double>(step);
      set_gradients(sharded, step);
      optimizer.step(lr, sharded.gradient_norm(), step);
      reference.step(lr, step);
      expect_same(sharded, reference);
      if (testing::Test::HasFatalFailure()) return;
    }
    expect_zero_padding(sharded);
  }
};

TEST_P(EveryMesh, AdamwIsTheReference) {
  compare({.name = OptimizerName::adamw, .eps = 1e-3, .weight_decay = 0.3, .clip_norm = 0});
}

TEST_P(EveryMesh, AdamwWithClippingIsTheReference) {
  compare({.name = OptimizerName::adamw, .eps = 1e-3, .weight_decay = 0.1, .clip_norm = 10});
}

TEST_P(EveryMesh, AdamwWithABetaNearOneIsTheReference) {
  compare({.name = OptimizerName::adamw, .beta2 = 0.9999, .eps = 1e-3, .clip_norm = 0});
}

TEST_P(EveryMesh, SgdIsTheReference) {
  compare({.name = OptimizerName::sgd, .beta1 = 0.9, .weight_decay = 0.3, .clip_norm = 0});
}

TEST_P(EveryMesh, SgdWithClippingIsTheReference) {
  compare({.name = OptimizerName::sgd, .beta1 = 0.8, .weight_decay = 0.1, .clip_norm = 3});
}

constexpr float elsewhere = -1e30F;

/// Returns the masters and moments after some steps, by names of tensor and parameter. Elements
/// that other ranks hold are `elsewhere`.
std::map<std::string, std::vector<float>> after_steps(
    const OptimizerOptions& options, MeshSizes mesh,
    const model::ModelConfig& config = tiny_model(), std::int64_t steps = 5,
    DType parameters = DType::f32) {
  ShardedModel sharded(config, mesh, options, {}, sharding::Offload::none, parameters);
  sharded.state().initialize(seed, initial_deviation);
  Optimizer optimizer(options, sharded.state(), sharded.mesh(), seed);
  for (std::int64_t step = 1; step <= steps; ++step) {
    set_gradients(sharded, step);
    optimizer.step(0.01, 1, step);
  }
  std::map<std::string, std::vector<float>> all;
  sharded.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
    const auto& parameter = sharded.table()[piece.parameter];
    const auto range = sharded.layout().range(piece, sharded.state().rank());
    const auto add = [&](const sharding::ShardedTensor& tensor) {
      auto& whole = all[tensor.name + " of " + parameter.name];
      whole.resize(static_cast<std::size_t>(parameter.numel()), elsewhere);
      const Tensor held = tensor.of(unit, piece);
      for_each_run(parameter.shape, range, [&](std::int64_t begin, std::int64_t at, auto count) {
        for (std::int64_t i = 0; i < count; ++i)
          whole[static_cast<std::size_t>(begin + i)] =
              held.dtype() == DType::f32 ? held.as<float>()[at + i]
                                         : static_cast<float>(held.as<bf16>()[at + i]);
      });
    };
    add(sharded.state().masters());
    for (const auto& moment : sharded.state().moments())
      if (!moment.has || moment.has(parameter)) add(moment);
  });
  return all;
}

class Bf16Moments : public testing::TestWithParam<MeshSizes> {};

// With replicas alone, every rank updates the whole model by itself, like a run of one rank.
TEST_P(Bf16Moments, HaveTheBitsOfOneRankOnEveryMesh) {
  if (GetParam().ranks() != test::world().size()) GTEST_SKIP() << "another number of ranks";
  const OptimizerOptions options{.eps = 1e-3, .clip_norm = 0, .moments = DType::bf16};
  const auto config = tiny_model();  // its vocabulary is padded on tensor ranks
  auto alone = after_steps(options, {test::world().size(), 1}, config);
  for (const auto& [name, elements] : after_steps(options, GetParam(), config))
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (elements[i] != elsewhere) {
        ASSERT_EQ(elements[i], alone.at(name)[i]) << name << " [" << i << "]";
      }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Bf16Moments,
                         testing::Values(MeshSizes{1, 2}, MeshSizes{1, 1, 2}, MeshSizes{2, 2},
                                         MeshSizes{1, 4}, MeshSizes{1, 2, 2}, MeshSizes{2, 1, 2}),
                         [](const auto& mesh) {
                           return fmt::format("replicate{}_shard{}_tensor{}", mesh.param.replicate,
                                              mesh.param.shard, mesh.param.tensor);
                         });

model::ModelConfig tiny_experts() {
  auto c = tiny_model();
  c.family = "mixtral";
  c.num_experts = 4;
  c.num_experts_per_tok = 2;
  return c.resolved();
}

/// Returns options with the rate of after_steps() as maximum, so that Muon's has its maximum too.
OptimizerOptions muon_options() {
  return {
      .name = OptimizerName::muon, .lr = 0.01, .eps = 1e-3, .weight_decay = 0.3, .clip_norm = 0};
}

using Doubles = std::vector<double>;

/// Returns a (m, k) times b (k, n).
Doubles product(const Doubles& a, const Doubles& b, std::size_t m, std::size_t k, std::size_t n) {
  Doubles c(m * n, 0.0);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < k; ++j)
      for (std::size_t l = 0; l < n; ++l) c[i * n + l] += a[i * k + j] * b[j * n + l];
  return c;
}

/// Muon's Newton-Schulz iterations as its authors write them, in double and always from the left:
/// that a matrix with more rows is transposed there changes no result.
Doubles orthogonalized(Doubles x, std::size_t m, std::size_t n) {
  double norm = 0;
  for (const double v : x) norm += v * v;
  for (double& v : x) v /= std::sqrt(norm) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    Doubles transposed(x.size());
    for (std::size_t r = 0; r < m; ++r)
      for (std::size_t c = 0; c < n; ++c) transposed[c * m + r] = x[r * n + c];
    const auto a = product(x, transposed, m, n, m);
    auto polynomial = product(a, a, m, m, m);
    for (std::size_t e = 0; e < a.size(); ++e)
      polynomial[e] = -4.7750 * a[e] + 2.0315 * polynomial[e];
    const auto more = product(polynomial, x, m, m, n);
    for (std::size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + more[e];
  }
  return x;
}

/// Returns a stack of matrices, or one, after Muon's first step from momentum zero.
Doubles after_first_step(const model::Parameter& parameter, const MuonOptions& muon, double decay) {
  std::vector<float> first(static_cast<std::size_t>(parameter.numel()));
  fill_normal(first.data(), 0, parameter.numel(), seed, parameter.name, initial_deviation);
  const auto g = gradient_of(parameter, 1);
  const auto rows = static_cast<std::size_t>(parameter.shape[parameter.shape.size() - 2]);
  const auto cols = static_cast<std::size_t>(parameter.shape.back());
  Doubles all;
  for (std::size_t begin = 0; begin < g.size(); begin += rows * cols) {
    Doubles update;
    for (std::size_t i = begin; i < begin + rows * cols; ++i) {
      const double momentum = (1 - muon.momentum) * g[i];
      update.push_back(muon.nesterov ? (1 - muon.momentum) * g[i] + muon.momentum * momentum
                                     : momentum);
    }
    update = orthogonalized(update, rows, cols);
    const double scale =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
    for (std::size_t i = 0; i < update.size(); ++i)
      all.push_back(first[begin + i] * (1 - muon.lr * decay) - muon.lr * scale * update[i]);
  }
  return all;
}

class MuonSteps : public testing::TestWithParam<MeshSizes> {
 protected:
  void SetUp() override {
    if (GetParam().ranks() != test::world().size()) GTEST_SKIP() << "another number of ranks";
  }
};

/// Takes a step, and returns the largest error of this rank's elements of hidden matrices.
double error_of_first_step(const OptimizerOptions& options, const MeshSizes& mesh,
                           DType parameters) {
  const auto config = mesh.expert > 1 ? tiny_experts() : tiny_model();
  const auto table = model::parameter_table(config);
  double error = 0;
  std::int64_t matrices = 0;
  for (const auto& [name, elements] : after_steps(options, mesh, config, 1, parameters)) {
    const auto parameter = std::ranges::find_if(
        table.parameters, [&](const auto& p) { return name == "weights of " + p.name; });
    if (parameter == table.parameters.end() || !is_hidden_matrix(*parameter)) continue;
    const auto expected = after_first_step(*parameter, options.muon, options.weight_decay);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] == elsewhere) continue;
      EXPECT_TRUE(std::isfinite(elements[i])) << name << " [" << i << "]";
      error = std::max(error, std::abs(elements[i] - expected[i]));
    }
    ++matrices;
  }
  EXPECT_GT(test::world().sum(matrices), 0);
  return error;
}

TEST_P(MuonSteps, TakesEachMatrixAndEachExpertsByItself) {
  for (const bool nesterov : {true, false}) {
    auto options = muon_options();
    options.muon.nesterov = nesterov;
    EXPECT_LT(error_of_first_step(options, GetParam(), DType::f32), 1e-5);
  }
}

TEST_P(MuonSteps, MultipliesInBf16IfTheParametersAreBf16) {
  const auto options = muon_options();
  const auto error = error_of_first_step(options, GetParam(), DType::bf16);
  EXPECT_LT(error, 0.05 * options.muon.lr);
  EXPECT_GT(test::world().sum(error), 1e-5);
}

TEST_P(MuonSteps, GivesTheResultOfOneRankOnEveryMesh) {
  for (const auto moments : {DType::f32, DType::bf16})
    for (const auto& config : {tiny_model(), tiny_experts()}) {
      if (config.num_experts == 0 && GetParam().expert > 1) continue;
      auto options = muon_options();
      options.moments = moments;
      auto alone = after_steps(options, {test::world().size(), 1}, config);
      for (const auto& [name, elements] : after_steps(options, GetParam(), config))
        for (std::size_t i = 0; i < elements.size(); ++i)
          if (elements[i] != elsewhere) {
            ASSERT_NEAR(elements[i], alone.at(name)[i], 1e-5) << name << " [" << i << "]";
          }
    }
}

INSTANTIATE_TEST_SUITE_P(Meshes, MuonSteps,
                         testing::Values(MeshSizes{1, 1}, MeshSizes{1, 2}, MeshSizes{2, 1},
                                         MeshSizes{2, 2}, MeshSizes{1, 4}, MeshSizes{1, 8},
                                         MeshSizes{2, 4},
                                         MeshSizes{.replicate = 1, .shard = 1, .expert = 2},
                                         MeshSizes{.replicate = 1, .shard = 2, .expert = 2},
                                         MeshSizes{.replicate = 2, .shard = 2, .expert = 2},
                                         MeshSizes{.replicate = 1, .shard = 2, .expert = 4}),
                         [](const auto& mesh) {
                           return fmt::format("replicate{}_shard{}_expert{}", mesh.param.replicate,
                                              mesh.param.shard, mesh.param.expert);
                         });

TEST(MuonParameters, AreTheMatricesOfHiddenLayers) {
  for (const auto& parameter : model::parameter_table(tiny_experts()).parameters) {
    const bool hidden = parameter.name.find("_proj.weight") != std::string::npos ||
                        parameter.name.find("experts.") != std::string::npos;
    EXPECT_EQ(is_hidden_matrix(parameter), hidden) << parameter.name;
  }
}

TEST_P(EveryMesh, GradientNormCountsEveryElementOnceAndIsTheSameEverywhere) {
  ShardedModel sharded(tiny_model(), GetParam());
  const Reference reference(sharded.table(), {});
  for (std::int64_t step = 1; step <= 3; ++step) {
    set_gradients(sharded, step);
    const double norm = sharded.gradient_norm();
    EXPECT_NEAR(norm, reference.norm(step), 1e-6 * reference.norm(step));
    for (const auto bits : test::world().all_gather(std::bit_cast<std::int64_t>(norm)))
      EXPECT_EQ(bits, std::bit_cast<std::int64_t>(norm));
  }
}

TEST_P(EveryMesh, GradientNormOfZeroIsZeroAndOfNoNumberIsNoNumberEverywhere) {
  ShardedModel sharded(tiny_model(), GetParam());
  EXPECT_EQ(sharded.gradient_norm(), 0.0);
  bool first = test::world().rank() == 0;
  sharded.for_each_piece([&](std::size_t unit, const sharding::Piece& piece) {
    if (std::exchange(first, false))
      sharded.state().gradients().shards[unit].as<float>()[piece.offset] = std::nanf("");
  });
  EXPECT_TRUE(std::isnan(sharded.gradient_norm()));
}

TEST(Optimizer, MomentsHaveTheNamesOfCheckpoints) {
  const auto names = [](const OptimizerOptions& options) {
    std::vector<std::string> all;
    for (const auto& moment : moments_of(options)) all.push_back(moment.name);
    return all;
  };
  EXPECT_EQ(names({}), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names({.name = OptimizerName::sgd}), std::vector<std::string>{"momentum"});
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryMesh,
                         testing::Values(MeshSizes{1, 1}, MeshSizes{1, 2}, MeshSizes{2, 1},
                                         MeshSizes{2, 2}, MeshSizes{1, 4}, MeshSizes{4, 1}),
                         [](const auto& mesh) {
                           return fmt::format("replicate{}_shard{}", mesh.param.replicate,
                                              mesh.param.shard);
                         });

}  // namespace
}  // namespace llamesh::optim
