#include "model/causal_lm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device/simulated/simulation.hpp"
#include "model/inference_weights.hpp"
#include "model/local_weights.hpp"

namespace llamesh::model {
namespace {

ModelConfig small(bool tied) {
  ModelConfig c;
  c.hidden_size = 24;
  c.intermediate_size = 40;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.vocab_size = 53;
  c.tie_word_embeddings = tied;
  return c.resolved();
}

/// A model with weights and a random batch in which some targets are ignored.
struct Fixture {
  explicit Fixture(const ModelConfig& c, const MemoryOptions& memory = {}, DType dtype = DType::f32)
      : config(c),
        table(parameter_table(config)),
        weights(table, dtype),
        llama(config, table, batch_size, sequence, memory, dtype),
        numbers(2 * batch_size * sequence * 4) {
    weights.initialize(7, 0.2F);
    std::mt19937 random(3);
    const auto tokens = batch().tokens.span<std::int32_t>();
    const auto targets = batch().targets.span<std::int32_t>();
    for (auto& t : tokens) t = static_cast<std::int32_t>(random() % 53);
    for (auto& t : targets) t = random() % 5 == 0 ? -1 : static_cast<std::int32_t>(random() % 53);
  }
  /// Returns the loss on the batch and computes its gradients.
  double train(float scale = 1.0F) {
    llama.train(weights, batch(), scale);
    return llama.take_loss();
  }
  double evaluate() {
    llama.evaluate(weights, batch());
    return llama.take_loss();
  }
  Batch batch() const {
    return {numbers.tensor(DType::i32, {batch_size, sequence}),
            numbers.tensor(DType::i32, {batch_size, sequence}, batch_size * sequence * 4)};
  }

  static constexpr std::int64_t batch_size = 2, sequence = 11;
  ModelConfig config;
  ParameterTable table;
  test::LocalWeights weights;
  CausalLM llama;
  device::Buffer numbers;
};

class EveryModel : public testing::TestWithParam<bool> {};

// Along random directions d, (L(w + e d) - L(w - e d)) / 2e must equal the gradient's component on
// d.
TEST_P(EveryModel, GradientsAgreeWithFiniteDifferences) {
  Fixture f(small(GetParam()));
  f.train();
  const auto values = f.weights.all_values().span<float>();
  const auto gradients = f.weights.all_gradients().span<float>();
  const std::vector<float> start(values.begin(), values.end());
  const auto loss_at = [&](const std::vector<float>& d, double e) {
    for (std::size_t i = 0; i < start.size(); ++i)
      values[i] = static_cast<float>(start[i] + e * d[i]);
    return f.evaluate();
  };
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (std::size_t p = 0; p < f.table.parameters.size(); ++p) {
    // One parameter at a time, so that a wrong one is named.
    const auto range = f.weights.gradient_of(static_cast<ParameterId>(p)).span<float>();
    const auto first = static_cast<std::size_t>(range.data() - gradients.data());
    std::vector<float> d(start.size(), 0.0F);
    double expected = 0;
    double size = 0;
    for (std::size_t i = first; i < first + range.size(); ++i) {
      d[i] = normal(random) + gradients[i] * 10;  // with a component along the gradient
      expected += static_cast<double>(d[i]) * gradients[i];
      size += static_cast<double>(d[i]) * d[i];
    }
    const double e = 2e-3 / std::sqrt(size);
    const double seen = (loss_at(d, e) - loss_at(d, -e)) / (2 * e);
    EXPECT_NEAR(seen, expected, 2e-2 * std::abs(expected) + 2e-2) << f.table.parameters[p].name;
  }
}

TEST_P(EveryModel, RecomputingChangesNothing) {
  using enum ActivationCheckpointing;
  auto config = small(GetParam());
  config.num_hidden_layers = 4;
  const auto gradients = [&](ActivationCheckpointing how, std::int64_t full_layers = 0) {
    Fixture f(config, {how, 1024, full_layers});
    const double loss = f.train(0.5F);
    const auto g = f.weights.all_gradients().span<float>();
    return std::pair(loss, std::vector<float>(g.begin(), g.end()));
  };
  const auto kept = gradients(none);
  for (const auto how : {none, selective, full})
    for (std::int64_t full_layers = 0; full_layers <= config.num_hidden_layers; ++full_layers)
      EXPECT_EQ(gradients(how, full_layers), kept) << full_layers << " full layers";
}

TEST_P(EveryModel, TheLossDoesNotDependOnTheChunk) {
  const auto run = [&](std::int64_t chunk) {
    Fixture f(small(GetParam()), {ActivationCheckpointing::none, chunk});
    const double loss = f.train();
    const auto g = f.weights.all_gradients().span<float>();
    return std::pair(loss, std::vector<float>(g.begin(), g.end()));
  };
  const auto whole = run(1024);
  for (const std::int64_t chunk : {1, 5, 22}) {
    const auto part = run(chunk);
    EXPECT_NEAR(part.first, whole.first, 1e-6 * whole.first);
    for (std::size_t i = 0; i < part.second.size(); ++i)
      ASSERT_NEAR(part.second[i], whole.second[i], 1e-4) << "element " << i << " chunk " << chunk;
  }
}

TEST_P(EveryModel, EvaluateGivesTheTrainingLoss) {
  Fixture f(small(GetParam()));
  EXPECT_NEAR(f.evaluate(), f.train(), 1e-4);
}

TEST_P(EveryModel, TheLossIsThatOfAllBatchesSinceItWasTaken) {
  Fixture f(small(GetParam()));
  const double once = f.evaluate();
  EXPECT_EQ(f.llama.take_loss(), 0.0);
  for (int i = 0; i < 5; ++i) f.llama.evaluate(f.weights, f.batch());
  EXPECT_EQ(f.llama.take_loss(), once + once + once + once + once);
}

TEST_P(EveryModel, AccumulatesWhereTheSlotSaysSo) {
  Fixture f(small(GetParam()));
  f.train();
  const auto g = f.weights.all_gradients().span<float>();
  const std::vector<float> once(g.begin(), g.end());
  f.train();
  for (std::size_t i = 0; i < once.size(); ++i)
    ASSERT_NEAR(g[i], 2 * once[i], 1e-4 + 1e-4 * std::abs(once[i]));
}

TEST_P(EveryModel, Bf16StaysNearFp32) {
  Fixture exact(small(GetParam()));
  Fixture rounded(small(GetParam()), {}, DType::bf16);
  const double loss = exact.train();
  EXPECT_NEAR(rounded.train(), loss, 0.02 * loss);
  double dot = 0, a2 = 0, b2 = 0;
  const auto a = exact.weights.all_gradients().span<float>();
  const auto b = rounded.weights.all_gradients().span<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    a2 += static_cast<double>(a[i]) * a[i];
    b2 += static_cast<double>(b[i]) * b[i];
  }
  EXPECT_GT(dot / std::sqrt(a2 * b2), 0.999);
  EXPECT_NEAR(std::sqrt(b2 / a2), 1.0, 0.02);
}

INSTANTIATE_TEST_SUITE_P(Heads, EveryModel, testing::Bool(),
                         [](const auto& tied) { return tied.param ? "tied" : "untied"; });

TEST(CausalLM, MemoryIsInUseOnlyWithinAStep) {
  Fixture f(small(false));
  f.train();  // the first step allocates the kernels' scratch
  auto& meter = device::MemoryMeter::instance();
  const auto before = meter.in_use();
  meter.start_interval();
  f.train();
  EXPECT_EQ(meter.in_use(), before);
  EXPECT_GT(meter.peak(), before);
}

/// Bytes at the peak of what `pass` does on the current device, by use. Scratch of kernels is left
/// out, since it stays from one test to the next.
template <class Pass>
device::MemoryByUse peak_of(const Pass& pass) {
  auto& meter = device::MemoryMeter::instance();
  const auto before = meter.by_use();
  meter.start_interval();
  pass();
  auto peak = meter.by_use_at_peak();
  for (std::size_t use = 0; use < peak.size(); ++use) peak[use] -= before[use];
  peak[static_cast<std::size_t>(device::MemoryUse::scratch)] = 0;
  return peak;
}

std::int64_t activations_of(const device::MemoryByUse& bytes) {
  return bytes[static_cast<std::size_t>(device::MemoryUse::activations)];
}

TEST(CausalLM, AnEvaluationTakesWhatIsPlannedAndLessThanATrainingStep) {
  auto config = small(false);
  config.num_hidden_layers = 6;
  // With as little memory as training can do.
  Fixture f(config, {ActivationCheckpointing::full, 5});
  const auto evaluate = [&] {
    InferenceWeights weights(f.table, DType::f32);
    CausalLM llama(f.config, f.table, Fixture::batch_size, Fixture::sequence, {.loss_chunk = 5},
                   DType::f32, one_rank(), Purpose::evaluate);
    llama.evaluate(weights, f.batch());
    llama.take_loss();
  };
  const auto measured = peak_of(evaluate);
  device::Hardware hardware;
  hardware.kind = device::Kind::cpu;
  hardware.memory_bandwidth = hardware.peak_fp32 = 1;
  hardware.gemm_share = hardware.attention_forward_share = 1;
  {
    const device::Simulation simulation(hardware);
    EXPECT_EQ(peak_of(evaluate), measured);
  }
  EXPECT_GT(activations_of(measured), 0);
  EXPECT_LT(10 * activations_of(measured), 7 * activations_of(peak_of([&] { f.train(); })));
}

TEST(CausalLM, PlannedForEvaluationItGivesTheSameLossAndCannotTrain) {
  Fixture f(small(false));
  CausalLM llama(f.config, f.table, Fixture::batch_size, Fixture::sequence, {}, DType::f32,
                 one_rank(), Purpose::evaluate);
  llama.evaluate(f.weights, f.batch());
  EXPECT_EQ(llama.take_loss(), f.evaluate());
  EXPECT_THROW(llama.train(f.weights, f.batch(), 1), std::exception);
}

}  // namespace
}  // namespace llamesh::model
