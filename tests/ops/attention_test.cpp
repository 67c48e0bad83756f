#include <cmath>
#include <limits>
#include <thread>

#include "device/memory_meter.hpp"
#include "device/simulated/simulation.hpp"
#include "ops/cpu/attention_softmax.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

class Attention : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Attention, ::testing::Values(DType::f32, DType::bf16), dtype_name);

/// 1 to 5 heads per key-value head. The forward pass takes query tiles 4 at a time: within a query
/// block, across several, and with a remainder. In the last two, several tasks of the backward pass
/// share a key-value head.
const ops::AttentionShape all_shapes[] = {
    {2, 1, 1, 1, 6},    {1, 37, 6, 3, 6},  {2, 64, 2, 1, 16}, {1, 65, 8, 2, 64}, {1, 150, 3, 1, 80},
    {1, 330, 2, 2, 20}, {1, 129, 5, 1, 9}, {1, 129, 8, 1, 9}, {2, 200, 16, 2, 6}};

ops::AttentionShape with_values(ops::AttentionShape shape, std::int64_t value_dim) {
  shape.value_dim = value_dim;
  return shape;
}

/// Values shorter and longer than keys, by whole vectors and by less.
const ops::AttentionShape other_values[] = {
    with_values({1, 37, 6, 3, 6}, 4), with_values({2, 65, 4, 4, 24}, 16),
    with_values({1, 129, 8, 1, 9}, 40), with_values({1, 330, 2, 2, 20, 70}, 3)};

/// Tensors for one call: q, k, v as views into one qkv buffer; its gradient likewise.
struct Problem {
  Problem(DType dtype, const ops::AttentionShape& shape,
          const std::vector<std::int32_t>& document_starts = {})
      : s(shape),
        starts(document_starts),
        qkv(dtype, tokens(), q_cols() + kv_cols() + v_cols(), 3),
        dqkv(dtype, tokens(), q_cols() + kv_cols() + v_cols(), 3),
        out(dtype, tokens(), out_cols(), 2),
        dout(dtype, tokens(), out_cols(), 2),
        log_sum_exp(DType::f32, s.batch * s.heads, s.sequence),
        delta(DType::f32, s.batch * s.heads, s.sequence) {}

  std::int64_t tokens() const { return s.batch * s.sequence; }
  std::int64_t q_cols() const { return s.heads * s.head_dim; }
  std::int64_t kv_cols() const { return s.kv_heads * s.head_dim; }
  std::int64_t v_cols() const { return s.kv_heads * s.value_dim; }
  std::int64_t out_cols() const { return s.heads * s.value_dim; }
  Tensor q(const Matrix& m) const { return m.view().slice_cols(0, q_cols()); }
  Tensor k(const Matrix& m) const { return m.view().slice_cols(q_cols(), kv_cols()); }
  Tensor v(const Matrix& m) const { return m.view().slice_cols(q_cols() + kv_cols(), v_cols()); }
  /// Returns columns [first, first + count) from all rows, or from rows [row, end), in double.
  static reference::Numbers part(const Matrix& m, std::int64_t first, std::int64_t count,
                                 std::int64_t row = 0,
                                 std::int64_t end = std::numeric_limits<std::int64_t>::max()) {
    reference::Numbers numbers;
    for (std::int64_t r = row; r < std::min(end, m.view().rows()); ++r)
      for (std::int64_t c = first; c < first + count; ++c) numbers.push_back(m.get(r, c));
    return numbers;
  }
  reference::Numbers q_numbers(const Matrix& m) const { return part(m, 0, q_cols()); }
  reference::Numbers k_numbers(const Matrix& m) const { return part(m, q_cols(), kv_cols()); }
  reference::Numbers v_numbers(const Matrix& m) const {
    return part(m, q_cols() + kv_cols(), v_cols());
  }
  reference::Shape plain_shape() const {
    const auto n = [](std::int64_t x) { return static_cast<reference::Index>(x); };
    reference::Shape shape{n(s.batch),    n(s.sequence),  n(s.heads), n(s.kv_heads),
                           n(s.head_dim), starts.numbers, n(s.window)};
    shape.divisor = static_cast<double>(s.score_divisor);
    shape.softcap = static_cast<double>(s.softcap);
    shape.value_dim = n(s.value_dim);
    return shape;
  }
  /// Returns the reference result for the contents of qkv.
  reference::Numbers expected() const {
    return reference::attention(q_numbers(qkv), k_numbers(qkv), v_numbers(qkv), plain_shape());
  }
  reference::AttentionGradients expected_gradients() const {
    return reference::attention_backward(dout.numbers(), q_numbers(qkv), k_numbers(qkv),
                                         v_numbers(qkv), plain_shape());
  }
  ops::AttentionCall call() const {
    return {.shape = s,
            .q = q(qkv),
            .k = k(qkv),
            .v = v(qkv),
            .document_starts = starts.tensor,
            .out = out,
            .log_sum_exp = log_sum_exp};
  }
  void forward(device::Stream& stream) { ops::attention(stream, call()); }
  void backward(device::Stream& stream) {
    ops::attention_backward(
        stream, call(),
        {.dout = dout, .dq = q(dqkv), .dk = k(dqkv), .dv = v(dqkv), .delta = delta});
  }

  ops::AttentionShape s;
  Integers starts;
  Matrix qkv, dqkv, out, dout, log_sum_exp, delta;
};

/// Tensors for a call with queries of part of the sequences.
struct PartProblem {
  PartProblem(DType dtype, const ops::AttentionShape& shape,
              const std::vector<std::int32_t>& document_starts = {})
      : s(shape),
        starts(document_starts),
        q(dtype, tokens(), s.heads * s.head_dim, 3),
        k(dtype, s.batch * s.keys, s.kv_heads * s.head_dim, 5),
        v(dtype, s.batch * s.keys, s.kv_heads * s.value_dim),
        out(dtype, tokens(), s.heads * s.value_dim, 2),
        dout(dtype, tokens(), s.heads * s.value_dim),
        dq(dtype, tokens(), s.heads * s.head_dim, 1),
        dk(dtype, s.batch * s.keys, s.kv_heads * s.head_dim, 3),
        dv(dtype, s.batch * s.keys, s.kv_heads * s.value_dim, 2),
        log_sum_exp(DType::f32, s.batch * s.heads, s.sequence),
        delta(DType::f32, s.batch * s.heads, s.sequence) {}

  std::int64_t tokens() const { return s.batch * s.sequence; }
  ops::AttentionCall call() const { return {s, q, k, v, starts.tensor, out, log_sum_exp}; }
  ops::AttentionGradients gradients() const { return {dout, dq, dk, dv, delta}; }
  reference::Shape plain_shape() const {
    const auto n = [](std::int64_t x) { return static_cast<reference::Index>(x); };
    reference::Shape shape{n(s.batch),    n(s.sequence),  n(s.heads), n(s.kv_heads),
                           n(s.head_dim), starts.numbers, n(s.window)};
    shape.keys = n(s.keys);
    shape.value_dim = n(s.value_dim);
    for (std::int64_t t = 0; t < s.sequence; ++t) shape.positions.push_back(n(s.positions[t]));
    return shape;
  }
  reference::Numbers expected() const {
    return reference::attention(q.numbers(), k.numbers(), v.numbers(), plain_shape());
  }
  reference::AttentionGradients expected_gradients() const {
    return reference::attention_backward(dout.numbers(), q.numbers(), k.numbers(), v.numbers(),
                                         plain_shape());
  }

  ops::AttentionShape s;
  Integers starts;
  Matrix q, k, v, out, dout, dq, dk, dv, log_sum_exp, delta;
};

/// Runs both passes and compares them with the reference. In documents with one token, dq and dk
/// are zero up to rounding.
void expect_reference_results(device::Stream& stream, Problem& p, double near) {
  p.forward(stream);
  p.backward(stream);
  const auto g = p.expected_gradients();
  expect_near(p.out.numbers(), p.expected(), near, "out");
  expect_near(p.q_numbers(p.dqkv), g.dq, 2.0 * near, "dq", 1.0);
  expect_near(p.k_numbers(p.dqkv), g.dk, 2.0 * near, "dk", 1.0);
  expect_near(p.v_numbers(p.dqkv), g.dv, near, "dv");
  EXPECT_TRUE(p.out.gaps_untouched() && p.dqkv.gaps_untouched());
}

TEST_P(Attention, ForwardEqualsTheReference) {
  for (const auto& shape : all_shapes) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape);
    p.forward(stream);
    expect_near(p.out.numbers(), p.expected(), near(), "out");
    EXPECT_TRUE(p.out.gaps_untouched());
  }
}

TEST_P(Attention, BackwardEqualsTheReference) {
  for (const auto& shape : all_shapes) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape);
    p.forward(stream);
    p.backward(stream);
    const auto g = p.expected_gradients();
    // With one key dq and dk are zero, and only rounding errors would be compared.
    if (shape.sequence > 1) {
      expect_near(p.q_numbers(p.dqkv), g.dq, 2.0 * near(), "dq");
      expect_near(p.k_numbers(p.dqkv), g.dk, 2.0 * near(), "dk");
    }
    expect_near(p.v_numbers(p.dqkv), g.dv, near(), "dv");
    EXPECT_TRUE(p.dqkv.gaps_untouched());
  }
}

TEST_P(Attention, OfOtherValuesEqualsTheReference) {
  for (const auto& shape : other_values)
    for (const std::int64_t longest : {0, 50}) {
      SCOPED_TRACE(::testing::Message() << shape.head_dim << " and " << shape.value_dim
                                        << ", documents of up to " << longest);
      const auto starts = longest > 0 ? random_documents(shape.batch, shape.sequence, longest)
                                      : std::vector<std::int32_t>{};
      Problem p(dtype(), shape, starts);
      expect_reference_results(stream, p, near());
    }
}

/// Parts of a sequence as ranks hold them that divide it: piece `rank`, and its mirror image from
/// the end.
ops::AttentionShape part_of_sequence(ops::AttentionShape s, std::int64_t ranks, std::int64_t rank) {
  s.keys = s.sequence;
  s.sequence = s.keys / ranks;
  const auto piece = s.sequence / 2;
  s.positions = {s.sequence, rank * piece, (2 * ranks - 1 - rank) * piece};
  return s;
}

/// Pieces that begin and end within vectors and within tiles, in rows with and without documents.
TEST_P(Attention, OfPartOfASequenceEqualsTheReference) {
  for (const ops::AttentionShape& whole : {ops::AttentionShape{2, 24, 6, 3, 6},
                                           {1, 180, 3, 1, 9},
                                           {1, 264, 2, 1, 16},
                                           {1, 264, 2, 2, 6, 40},
                                           {1, 264, 9, 1, 6},
                                           with_values({1, 180, 3, 3, 12}, 8)})
    for (const std::int64_t ranks : {1, 2, 3})
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        for (const std::int64_t longest : {0, 50}) {
          const auto s = part_of_sequence(whole, ranks, rank);
          SCOPED_TRACE(::testing::Message() << "rank " << rank << " of " << ranks << ", " << s.keys
                                            << " keys, documents of up to " << longest);
          std::vector<std::int32_t> starts;
          if (longest > 0) {
            const auto all = random_documents(s.batch, s.keys, longest);
            for (std::int64_t m = 0; m < s.batch * s.sequence; ++m)
              starts.push_back(all[static_cast<std::size_t>(m / s.sequence * s.keys +
                                                            s.positions[m % s.sequence])]);
          }
          PartProblem p(dtype(), s, starts);
          ops::attention(stream, p.call());
          ops::attention_backward(stream, p.call(), p.gradients());
          expect_near(p.out.numbers(), p.expected(), near(), "out");
          const auto g = p.expected_gradients();
          expect_near(p.dq.numbers(), g.dq, 2.0 * near(), "dq", 1.0);
          expect_near(p.dk.numbers(), g.dk, 2.0 * near(), "dk", 1.0);
          expect_near(p.dv.numbers(), g.dv, near(), "dv");
          EXPECT_TRUE(p.out.gaps_untouched() && p.dq.gaps_untouched() && p.dk.gaps_untouched());
        }
}

/// The ranks' outputs are the rows of the whole sequence's, bit by bit, if pieces are whole tiles.
TEST_P(Attention, OfPartOfASequenceGivesTheRowsOfTheWhole) {
  const ops::AttentionShape whole{1, 512, 4, 2, 16};
  PartProblem all(dtype(), whole);
  ops::attention(stream, all.call());
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const auto s = part_of_sequence(whole, 2, rank);
    PartProblem part(dtype(), s);
    for (std::int64_t r = 0; r < s.sequence; ++r)
      ops::copy(stream, part.q.view().slice_rows(r, 1), all.q.view().slice_rows(s.positions[r], 1));
    auto call = part.call();
    call.k = all.k, call.v = all.v;
    ops::attention(stream, call);
    for (std::int64_t r = 0; r < s.sequence; ++r)
      for (std::int64_t c = 0; c < part.out.view().cols(); ++c)
        ASSERT_EQ(part.out.get(r, c), all.out.get(s.positions[r], c)) << r;
  }
}

TEST_P(Attention, BackwardThroughRopeIsItsBackwardPassAfterwards) {
  for (const auto& shape : all_shapes) {
    if (shape.head_dim % 2 != 0) continue;
    SCOPED_TRACE(shape.sequence);
    std::vector<std::int32_t> starts(static_cast<std::size_t>(shape.batch * shape.sequence));
    for (std::size_t i = 0; i < starts.size(); ++i)
      starts[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(shape.sequence) / 7 * 7);
    Problem p(dtype(), shape, starts);
    const Matrix cos_sin(DType::f32, shape.sequence, shape.head_dim, 0);
    p.forward(stream);
    p.backward(stream);
    ops::rope(stream, p.dqkv.view().slice_cols(0, p.q_cols() + p.kv_cols()), cos_sin,
              p.starts.tensor, shape.positions, ops::Rotation::backward);
    const auto apart = p.dqkv.numbers();
    ops::attention_backward(stream, p.call(),
                            {.dout = p.dout,
                             .dq = p.q(p.dqkv),
                             .dk = p.k(p.dqkv),
                             .dv = p.v(p.dqkv),
                             .delta = p.delta,
                             .cos_sin = cos_sin});
    EXPECT_EQ(p.dqkv.numbers(), apart);
  }
}

TEST(AttentionReference, BackwardIsFiniteDifferences) {
  Problem p(DType::f32, {1, 5, 4, 2, 6});
  const auto q = p.q_numbers(p.qkv), k = p.k_numbers(p.qkv), v = p.v_numbers(p.qkv);
  const auto c = p.dout.numbers();
  const auto s = p.plain_shape();
  const auto g = reference::attention_backward(c, q, k, v, s);
  using reference::numerical_gradient;
  const auto of_q = [&](const auto& x) { return reference::attention(x, k, v, s); };
  const auto of_k = [&](const auto& x) { return reference::attention(q, x, v, s); };
  const auto of_v = [&](const auto& x) { return reference::attention(q, k, x, s); };
  expect_near(g.dq, numerical_gradient(of_q, q, c), 1e-7, "dq");
  expect_near(g.dk, numerical_gradient(of_k, k, c), 1e-7, "dk");
  expect_near(g.dv, numerical_gradient(of_v, v, c), 1e-7, "dv");
}

TEST_P(Attention, LargeScoresStayFinite) {
  Problem p(dtype(), {1, 70, 2, 1, 8});
  for (std::int64_t r = 0; r < p.tokens(); ++r)
    for (std::int64_t c = 0; c < p.q_cols() + p.kv_cols(); ++c)
      p.qkv.set(r, c, 30.0 * p.qkv.get(r, c));
  p.forward(stream);
  expect_near(p.out.numbers(), p.expected(), dtype() == DType::f32 ? 2e-4 : 6e-3, "out");
}

// A NaN query makes its own row NaN and no other.
TEST_P(Attention, NaNIsNotHidden) {
  const std::int64_t row = 70;
  Problem p(dtype(), {1, 140, 1, 1, 8});
  p.qkv.set(row, 3, std::numeric_limits<double>::quiet_NaN());
  p.forward(stream);
  for (std::int64_t r = 0; r < p.tokens(); ++r)
    EXPECT_EQ(std::isnan(p.out.get(r, 0)), r == row) << "row " << r;
}

TEST_P(Attention, DoesNotDependOnTheNumberOfThreads) {
  for (const ops::AttentionShape& shape :
       {ops::AttentionShape{2, 130, 6, 3, 10}, {1, 330, 6, 1, 10}}) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape);
    const auto work = [&] {
      p.forward(stream);
      p.backward(stream);
    };
    expect_same_for_any_threads(work, [&] { return p.dqkv.bytes(); });
    expect_same_for_any_threads(work, [&] { return p.out.bytes(); });
  }
}

/// A new thread has no scratch yet and works alone, so what it allocates is what a thread needs.
TEST_P(Attention, ScratchIsAsPlanned) {
  const auto in_use = [] {
    const auto bytes = device::MemoryMeter::instance().by_use();
    return bytes[static_cast<std::size_t>(device::MemoryUse::scratch)];
  };
  for (const ops::AttentionShape& shape : {ops::AttentionShape{2, 130, 6, 3, 10},
                                           {1, 330, 6, 1, 10},
                                           with_values({2, 130, 6, 3, 40}, 10),
                                           with_values({1, 330, 6, 1, 10}, 40)}) {
    SCOPED_TRACE(::testing::Message() << shape.sequence << ", values of " << shape.value_dim);
    Problem p(dtype(), shape);
    std::int64_t forward = 0, both = 0;
    std::thread([&] {
      auto own = device::Stream::calling_thread();
      const auto before = in_use();
      p.forward(own);
      forward = in_use() - before;
      p.backward(own);
      both = in_use() - before;
    }).join();
    EXPECT_EQ(forward, ops::cpu::attention_scratch(shape, 1));
    EXPECT_EQ(both - forward, ops::cpu::attention_backward_scratch(shape, 1));
  }
}

/// Threads without a task need no scratch: the first shape has one task per pass.
TEST(AttentionScratch, IsForThreadsWithATask) {
  const ops::AttentionShape one{1, 37, 2, 1, 6}, many{4, 256, 8, 4, 6};
  using ops::cpu::attention_backward_scratch;
  using ops::cpu::attention_scratch;
  EXPECT_EQ(attention_scratch(one, 8), attention_scratch(one, 1));
  EXPECT_EQ(attention_backward_scratch(one, 8), attention_backward_scratch(one, 1));
  EXPECT_EQ(attention_scratch(many, 8), 8 * attention_scratch(many, 1));
  EXPECT_EQ(attention_backward_scratch(many, 8), 8 * attention_backward_scratch(many, 1));
}

TEST(Softmax, Exp2IsThatOfDouble) {
  const auto exp2 = [](float x) { return ops::cpu::exp2(ops::cpu::broadcast(x))[0]; };
  for (float x = 0.0F; x > -126.0F; x -= 0.00037F) {
    const auto expected = std::exp2(static_cast<double>(x));
    ASSERT_NEAR(exp2(x), expected, 2e-7 * expected) << x;
  }
  EXPECT_EQ(exp2(0.0F), 1.0F);
  for (const float x : {-127.0F, -1e3F, -1e30F, -std::numeric_limits<float>::infinity()})
    EXPECT_EQ(exp2(x), 0.0F) << x;
  EXPECT_TRUE(std::isnan(exp2(std::numeric_limits<float>::quiet_NaN())));
}

// --- Documents packed into rows ---

/// Document starts whose documents end before, at and after 64-token tile edges.
const std::vector<std::int64_t> cuts_at_edges = {0, 1, 63, 64, 65, 127, 128, 130, 192, 255, 258};

std::vector<std::int32_t> starts_of(const std::vector<std::int64_t>& cuts, std::int64_t sequence) {
  std::vector<std::int32_t> starts;
  for (std::size_t c = 0; c < cuts.size(); ++c)
    starts.resize(static_cast<std::size_t>(c + 1 < cuts.size() ? cuts[c + 1] : sequence),
                  static_cast<std::int32_t>(cuts[c]));
  return starts;
}

/// Packed rows with several shapes: documents much shorter and longer than a tile, and at its
/// edges.
std::vector<std::pair<ops::AttentionShape, std::vector<std::int32_t>>> packed_rows() {
  std::vector<std::pair<ops::AttentionShape, std::vector<std::int32_t>>> all;
  const ops::AttentionShape edges{1, 263, 4, 2, 6};
  all.emplace_back(edges, starts_of(cuts_at_edges, edges.sequence));
  for (const auto& s : {ops::AttentionShape{3, 37, 6, 3, 6},
                        {2, 64, 2, 1, 16},
                        {1, 193, 8, 2, 20},
                        {1, 330, 2, 2, 6}})
    for (const std::int64_t longest : {1, 9, 70, 300})
      all.emplace_back(s, random_documents(s.batch, s.sequence, longest));
  return all;
}

TEST_P(Attention, WithDocumentsEqualsTheReference) {
  for (const auto& [shape, starts] : packed_rows()) {
    SCOPED_TRACE(::testing::Message() << shape.sequence << " tokens, documents start at "
                                      << ::testing::PrintToString(starts));
    Problem p(dtype(), shape, starts);
    expect_reference_results(stream, p, near());
  }
}

TEST_P(Attention, DividesScoresAsAsked) {
  ops::AttentionShape shape{2, 70, 4, 2, 6};
  shape.score_divisor = 0.5F;
  Problem p(dtype(), shape);
  p.forward(stream);
  p.backward(stream);
  const auto g = p.expected_gradients();
  expect_near(p.out.numbers(), p.expected(), near(), "out");
  expect_near(p.q_numbers(p.dqkv), g.dq, 4.0 * near(), "dq", 1.0);
  expect_near(p.k_numbers(p.dqkv), g.dk, 4.0 * near(), "dk", 1.0);
  expect_near(p.v_numbers(p.dqkv), g.dv, 2.0 * near(), "dv");
}

/// Windows of one key, within a vector, within and across tiles, alone and with documents.
TEST_P(Attention, WithAWindowEqualsTheReference) {
  for (const std::int64_t window : {1, 3, 16, 61, 64, 130, 262})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "window " << window << (documents ? ", documents" : ""));
      const ops::AttentionShape shape{1, 263, 4, 2, 6, window};
      Problem p(
          dtype(), shape,
          starts_of(documents ? cuts_at_edges : std::vector<std::int64_t>{0}, shape.sequence));
      expect_reference_results(stream, p, near());
    }
}

TEST_P(Attention, WithASoftcapEqualsTheReference) {
  for (auto shape : {ops::AttentionShape{1, 37, 6, 3, 6}, {2, 129, 8, 1, 9}, {1, 263, 4, 2, 6, 61}})
    for (const float softcap : {0.5F, 3.0F}) {
      SCOPED_TRACE(::testing::Message() << shape.sequence << " tokens, softcap " << softcap);
      shape.score_divisor = 0.7F;
      shape.softcap = softcap;
      Problem p(dtype(), shape);
      p.forward(stream);
      p.backward(stream);
      const auto g = p.expected_gradients();
      expect_near(p.out.numbers(), p.expected(), near(), "out");
      expect_near(p.q_numbers(p.dqkv), g.dq, 4.0 * near(), "dq", 1.0);
      expect_near(p.k_numbers(p.dqkv), g.dk, 4.0 * near(), "dk", 1.0);
      expect_near(p.v_numbers(p.dqkv), g.dv, 2.0 * near(), "dv");
    }
}

TEST_P(Attention, AWindowOfTheWholeRowChangesNoBit) {
  Problem p(dtype(), {2, 130, 2, 1, 6});
  const auto results = [&] {
    p.forward(stream);
    p.backward(stream);
    return std::pair(p.out.bytes(), p.dqkv.bytes());
  };
  const auto without = results();
  for (const std::int64_t window : {130, 131, 1 << 20}) {
    p.s.window = window;
    EXPECT_TRUE(results() == without) << window;
  }
}

/// The cache gives what the whole row gives, whatever the window.
TEST_P(Attention, TheCacheHonorsTheWindow) {
  for (const std::int64_t window : {0, 1, 7, 40, 100}) {
    const std::int64_t past = 33, count = 5;
    ops::AttentionShape shape{1, past + count, 4, 2, 6, window};
    shape.score_divisor = 0.5F;
    shape.softcap = window == 7 ? 2.0F : 0.0F;
    shape.value_dim = window == 40 ? 3 : 6;
    Problem p(dtype(), shape);
    p.forward(stream);
    auto step = shape;
    step.sequence = count;
    const Matrix out(dtype(), count, p.out_cols()), log_sum_exp(DType::f32, shape.heads, count);
    ops::cached_attention(stream,
                          {.shape = step,
                           .q = p.q(p.qkv).slice_rows(past, count),
                           .k = p.k(p.qkv),
                           .v = p.v(p.qkv),
                           .out = out,
                           .log_sum_exp = log_sum_exp},
                          past);
    expect_near(out.numbers(), Problem::part(p.out, 0, p.out_cols(), past), 2.0 * near(), "out");
    expect_near(log_sum_exp.numbers(), Problem::part(p.log_sum_exp, past, count), 1e-5, "sums");
  }
}

/// Every number is that of a softmax over the keys and the sink.
TEST_P(Attention, SinksTakePartInTheSoftmax) {
  for (const auto& shape : {ops::AttentionShape{1, 1, 1, 1, 6},
                            {2, 9, 4, 2, 6, 4},
                            with_values({1, 70, 6, 3, 8}, 5),
                            {1, 33, 2, 1, 16}}) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape, random_documents(shape.batch, shape.sequence, 20));
    Matrix sinks(dtype(), 1, shape.heads, 0, 2.0), dsinks(DType::f32, 1, shape.heads);
    sinks.set(0, 0, 60.0);  // far above all scores
    if (shape.heads > 1) sinks.set(0, 1, -60.0);
    const auto before = dsinks.numbers();
    const ops::AttentionSinks call{
        .sinks = sinks.view().reshape({shape.heads}),
        .out = p.out,
        .log_sum_exp = p.log_sum_exp.view().reshape({shape.batch, shape.heads, shape.sequence})};
    p.forward(stream);
    ops::attention_sinks(stream, call);
    auto expected = p.plain_shape();
    expected.sinks = sinks.numbers();
    const auto q = p.q_numbers(p.qkv), k = p.k_numbers(p.qkv), v = p.v_numbers(p.qkv);
    expect_near(p.out.numbers(), reference::attention(q, k, v, expected), 2.0 * near(), "out",
                1e-20);
    p.backward(stream);
    const auto gradients = reference::attention_backward(p.dout.numbers(), q, k, v, expected);
    expect_near(p.q_numbers(p.dqkv), gradients.dq, 2.0 * near(), "dq", 1e-7);
    expect_near(p.k_numbers(p.dqkv), gradients.dk, 2.0 * near(), "dk", 1e-7);
    expect_near(p.v_numbers(p.dqkv), gradients.dv, 2.0 * near(), "dv", 1e-7);
    ops::attention_sinks_backward(stream, call,
                                  {.dout = p.dout,
                                   .dsinks = dsinks.view().reshape({shape.heads}),
                                   .accumulate = Accumulate::yes});
    auto of_sinks = reference::numerical_gradient(
        [&](const reference::Numbers& each) {
          expected.sinks = each;
          return reference::attention(q, k, v, expected);
        },
        sinks.numbers(), p.dout.numbers());
    for (std::size_t h = 0; h < of_sinks.size(); ++h) of_sinks[h] += before[h];
    expect_near(dsinks.numbers(), of_sinks, 2.0 * near(), "dsinks");
    EXPECT_TRUE(p.out.gaps_untouched());
  }
}

TEST_P(Attention, SinksRefuseOtherShapes) {
  const Problem p(dtype(), {1, 5, 4, 2, 6});
  const Matrix three(dtype(), 1, 3), four(dtype(), 1, 4);
  const Tensor log_sum_exp = p.log_sum_exp.view().reshape({1, 4, 5});
  EXPECT_THROW(ops::attention_sinks(stream, {three, p.out, log_sum_exp}), std::exception);
  EXPECT_THROW(ops::attention_sinks(stream, {four, p.out, p.log_sum_exp}), std::exception);
  EXPECT_THROW(ops::attention_sinks_backward(stream, {four, p.out, log_sum_exp},
                                             {.dout = p.dout, .dsinks = three}),
               std::exception);
}

/// The planner's time for attention is that of the keys in the window.
TEST(SimulatedAttention, CostsTheVisibleKeys) {
  device::Hardware hardware;
  hardware.memory_bandwidth = 1e30;
  hardware.peak_fp32 = 1e9;
  hardware.attention_forward_share = hardware.attention_backward_share = 1;
  const auto seconds = [&](std::int64_t window, std::int64_t past) {
    const Problem p(DType::f32, {1, 64, 2, 1, 8, window});
    const device::Simulation simulation(hardware);
    auto& simulated = device::compute_stream();
    if (past == 0)
      ops::attention(simulated, p.call());
    else
      ops::cached_attention(simulated, p.call(), past);
    return simulation.now();
  };
  EXPECT_DOUBLE_EQ(seconds(64, 0), seconds(0, 0));
  EXPECT_NEAR(seconds(16, 0) / seconds(0, 0), 2 * 0.25 - 0.25 * 0.25, 1e-9);
  EXPECT_NEAR(seconds(16, 1000) / seconds(0, 1000), 16.0 / (1000 + 32), 1e-9);
  EXPECT_NEAR(seconds(1040, 1000) / seconds(0, 1000), (1040 - 40.0 * 40 / 128) / 1032, 1e-9);
}

/// Ranks that divide a sequence have the same share of its cost.
TEST(SimulatedAttention, CostsTheSameForEachPartOfASequence) {
  device::Hardware hardware;
  hardware.memory_bandwidth = 1e30;
  hardware.peak_fp32 = 1e9;
  hardware.attention_forward_share = 1;
  const ops::AttentionShape whole{1, 96, 2, 1, 8};
  const auto seconds = [&](const ops::AttentionShape& shape) {
    const PartProblem p(DType::f32, shape);
    const device::Simulation simulation(hardware);
    ops::attention(device::compute_stream(), p.call());
    return simulation.now();
  };
  for (std::int64_t rank = 0; rank < 3; ++rank)
    EXPECT_NEAR(seconds(part_of_sequence(whole, 3, rank)) / seconds(whole), 1.0 / 3, 1e-9);
}

TEST_P(Attention, DocumentsOfOneTokenAnswerWithTheirValue) {
  const ops::AttentionShape s{1, 70, 2, 2, 6};
  Problem p(dtype(), s, random_documents(1, s.sequence, 1));
  p.forward(stream);
  expect_near(p.out.numbers(), p.v_numbers(p.qkv), 1e-6, "out");
}

// Values in another document, however large, must not change a bit.
TEST_P(Attention, NothingOfAnotherDocumentIsSeen) {
  const std::int64_t first = 50, last = 140;
  Problem p(dtype(), {1, 200, 4, 2, 10}, starts_of({0, first, last}, 200));
  const auto document = [&](const Matrix& m) {
    return Problem::part(m, 0, m.view().cols(), first, last);
  };
  p.forward(stream);
  p.backward(stream);
  const auto out = document(p.out), dqkv = document(p.dqkv);
  for (std::int64_t r = 0; r < p.tokens(); ++r)
    for (std::int64_t c = 0; c < p.qkv.view().cols(); ++c)
      if (r < first || r >= last) p.qkv.set(r, c, 1e3 * p.qkv.get(r, c));
  p.forward(stream);
  p.backward(stream);
  EXPECT_EQ(document(p.out), out) << "seed " << seed;
  EXPECT_EQ(document(p.dqkv), dqkv) << "seed " << seed;
}

TEST_P(Attention, WithDocumentsDoesNotDependOnTheNumberOfThreads) {
  const ops::AttentionShape s{2, 130, 6, 3, 10};
  Problem p(dtype(), s, random_documents(s.batch, s.sequence, 60));
  const auto work = [&] {
    p.forward(stream);
    p.backward(stream);
  };
  expect_same_for_any_threads(work, [&] { return std::pair(p.out.bytes(), p.dqkv.bytes()); });
}

TEST_P(Attention, StartsThatAreNoneAreRefused) {
  using Starts = std::vector<std::int32_t>;
  for (const auto& wrong : {Starts{1, 1, 1, 1},
                            {0, 0, 1, 1},
                            {0, 0, 3, 3},
                            {0, 1, 1, 0},
                            {0, 0, 0, -1},
                            {0, 0, 0},
                            {0, 0, 0, 0, 0}}) {
    Problem p(dtype(), {1, 4, 2, 1, 6}, wrong);
    EXPECT_THROW(p.forward(stream), Error) << ::testing::PrintToString(wrong);
    EXPECT_THROW(p.backward(stream), Error) << ::testing::PrintToString(wrong);
  }
}

}  // namespace
}  // namespace llamesh::test
