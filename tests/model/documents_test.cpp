#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "model/causal_lm.hpp"
#include "model/local_weights.hpp"

// A Llama treats documents packed into rows like documents in separate rows.

namespace llamesh::model {
namespace {

constexpr unsigned documents_seed = 20241121;

struct PackedShape {
  std::int64_t heads, kv_heads, head_dim, batch, sequence, longest;  ///< `longest`: longest
                                                                     ///< document
};

ModelConfig config_of(const PackedShape& s) {
  ModelConfig c;
  c.hidden_size = 20;
  c.intermediate_size = 28;
  c.num_hidden_layers = 2;
  c.num_attention_heads = s.heads;
  c.num_key_value_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.vocab_size = 43;
  return c.resolved();
}

/// A document in a packed batch: its start among the B T tokens, and its length.
struct Document {
  std::int64_t first, length;
};

/// Random tokens and targets, some excluded from the loss, split into random documents.
struct Packed {
  explicit Packed(const PackedShape& s) : batch(s.batch), sequence(s.sequence) {
    std::mt19937 random(documents_seed);
    const auto below = [&](std::int64_t n) {
      return std::uniform_int_distribution<std::int32_t>(0,
                                                         static_cast<std::int32_t>(n - 1))(random);
    };
    for (std::int64_t m = 0, start = 0, end = 0; m < batch * sequence; ++m) {
      const auto i = m % sequence;
      if (i == 0 || i == end) {
        start = i;
        end = std::min<std::int64_t>(sequence, i + 1 + below(s.longest));
        documents.push_back({m, end - start});
      }
      starts.push_back(static_cast<std::int32_t>(start));
      tokens.push_back(below(43));
      targets.push_back(below(6) == 0 ? -1 : below(43));
    }
  }
  Batch rows() {
    return {Tensor(tokens.data(), DType::i32, {batch, sequence}),
            Tensor(targets.data(), DType::i32, {batch, sequence}),
            Tensor(starts.data(), DType::i32, {batch, sequence})};
  }
  Batch alone(const Document& d) {
    return {Tensor(tokens.data() + d.first, DType::i32, {1, d.length}),
            Tensor(targets.data() + d.first, DType::i32, {1, d.length})};
  }

  std::int64_t batch, sequence;
  std::vector<std::int32_t> tokens, targets, starts;
  std::vector<Document> documents;
};

/// A model's results for several batches in turn: everything that training depends on.
struct Answers {
  Answers(const PackedShape& shape, DType type, ActivationCheckpointing recomputed = {})
      : config(config_of(shape)),
        table(parameter_table(config)),
        weights(table, type),
        checkpointing(recomputed),
        dtype(type) {
    weights.initialize(7, 0.3F);
  }
  void add(const Batch& batch) {
    const auto rows = batch.tokens.rows(), length = batch.tokens.cols();
    CausalLM llama(config, table, rows, length, {checkpointing, 64}, dtype);
    const device::Buffer buffer(rows * length * config.vocab_size * 4);
    const Tensor out = buffer.tensor(DType::f32, {rows * length, config.vocab_size});
    llama.logits(weights, batch, out);
    const auto numbers = out.span<float>();
    logits.insert(logits.end(), numbers.begin(), numbers.end());
    llama.evaluate(weights, batch);
    evaluated += llama.take_loss();
    llama.train(weights, batch, 0.25F);
    trained += llama.take_loss();
  }
  std::vector<float> gradient(ParameterId id) const {
    const auto g = weights.gradient_of(id).span<float>();
    return {g.begin(), g.end()};
  }
  std::vector<float> gradients() const {
    const auto g = weights.all_gradients().span<float>();
    return {g.begin(), g.end()};
  }

  ModelConfig config;
  ParameterTable table;
  test::LocalWeights weights;
  ActivationCheckpointing checkpointing;
  DType dtype;
  std::vector<float> logits;
  double evaluated = 0, trained = 0;
};

double norm(const std::vector<float>& a) {
  double squares = 0;
  for (const float x : a) squares += static_cast<double>(x) * x;
  return std::sqrt(squares);
}

/// Returns ||a - b|| / ||b||, with ||b|| at least `least`.
double distance(std::vector<float> a, const std::vector<float>& b, double least = 0) {
  for (std::size_t i = 0; i < b.size(); ++i) a[i] -= b[i];
  return norm(a) / std::max(norm(b), least);
}

// Lengths below, at and above attention's 64-token tile edges; documents from one token to the
// whole row.
const PackedShape shapes[] = {{4, 2, 6, 2, 11, 5},     {8, 2, 4, 1, 64, 30},  {6, 3, 8, 2, 65, 65},
                              {3, 1, 16, 1, 130, 100}, {5, 5, 10, 1, 201, 9}, {2, 1, 20, 3, 1, 1},
                              {8, 2, 4, 2, 193, 300},  {6, 3, 8, 1, 128, 1}};

class Documents : public testing::TestWithParam<DType> {
 protected:
  double near() const { return GetParam() == DType::f32 ? 1e-5 : 2e-2; }
};

TEST_P(Documents, ArePackedWhatTheyAreAlone) {
  for (const auto& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads, "
                                    << shape.sequence << " tokens, seed " << documents_seed);
    Packed packed(shape);
    Answers together(shape, GetParam()), alone(shape, GetParam());
    together.add(packed.rows());
    for (const auto& document : packed.documents) alone.add(packed.alone(document));
    EXPECT_LT(distance(together.logits, alone.logits), near());
    EXPECT_NEAR(together.trained, alone.trained, near() * alone.trained);
    EXPECT_NEAR(together.evaluated, alone.evaluated, near() * alone.evaluated);
    // With one-token documents the gradients of q and k are zero up to rounding.
    const double least = 0.05 * norm(alone.gradients());
    for (std::size_t p = 0; p < alone.table.parameters.size(); ++p) {
      const auto id = static_cast<ParameterId>(p);
      EXPECT_LT(distance(together.gradient(id), alone.gradient(id), least), near())
          << alone.table.parameters[p].name;
    }
  }
}

TEST_P(Documents, ChangeTheAnswers) {
  const PackedShape shape{4, 2, 6, 2, 70, 30};
  Packed packed(shape);
  Answers with(shape, GetParam()), without(shape, GetParam());
  with.add(packed.rows());
  Batch causal = packed.rows();
  causal.document_starts = {};
  without.add(causal);
  EXPECT_GT(distance(with.logits, without.logits), 0.05);
}

TEST_P(Documents, OfWholeRowsAreNone) {
  const PackedShape shape{4, 2, 6, 2, 70, 30};
  Packed packed(shape);
  std::ranges::fill(packed.starts, 0);
  Answers with(shape, GetParam()), without(shape, GetParam());
  with.add(packed.rows());
  Batch causal = packed.rows();
  causal.document_starts = {};
  without.add(causal);
  EXPECT_EQ(with.logits, without.logits);
  EXPECT_EQ(with.gradients(), without.gradients());
}

TEST_P(Documents, GiveTheSameBitsEachTimeAndWhenRecomputed) {
  const PackedShape shape{6, 3, 8, 2, 131, 50};
  Packed packed(shape);
  using enum ActivationCheckpointing;
  Answers once(shape, GetParam(), none);
  once.add(packed.rows());
  for (const auto checkpointing : {none, selective, full}) {
    Answers again(shape, GetParam(), checkpointing);
    again.add(packed.rows());
    EXPECT_EQ(again.logits, once.logits);
    EXPECT_EQ(again.trained, once.trained);
    EXPECT_EQ(again.gradients(), once.gradients());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Documents, testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST(DocumentStarts, OfAnotherShapeAreRefused) {
  const PackedShape shape{4, 2, 6, 2, 12, 5};
  Packed packed(shape);
  Answers answers(shape, DType::f32);
  Batch batch = packed.rows();
  batch.document_starts = Tensor(packed.starts.data(), DType::i32, {1, 12});
  EXPECT_THROW(answers.add(batch), Error);
}

}  // namespace
}  // namespace llamesh::model
