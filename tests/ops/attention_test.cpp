#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

class Attention : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Attention, ::testing::Values(DType::f32, DType::bf16), dtype_name);

const ops::AttentionShape all_shapes[] = {
    {2, 1, 1, 1, 6}, {1, 37, 6, 3, 6}, {2, 64, 2, 1, 16}, {1, 65, 8, 2, 64}, {1, 150, 3, 1, 80}};

/// The tensors of one call: q, k, v as views inside one qkv buffer, and its gradient likewise.
struct Problem {
  Problem(DType dtype, const ops::AttentionShape& shape)
      : s(shape),
        qkv(dtype, tokens(), q_cols() + 2 * kv_cols(), 3),
        dqkv(dtype, tokens(), q_cols() + 2 * kv_cols(), 3),
        out(dtype, tokens(), q_cols(), 2),
        dout(dtype, tokens(), q_cols(), 2),
        log_sum_exp(DType::f32, s.batch * s.heads, s.sequence),
        delta(DType::f32, s.batch * s.heads, s.sequence) {}

  std::int64_t tokens() const { return s.batch * s.sequence; }
  std::int64_t q_cols() const { return s.heads * s.head_dim; }
  std::int64_t kv_cols() const { return s.kv_heads * s.head_dim; }
  Tensor q(const Matrix& m) const { return m.view().slice_cols(0, q_cols()); }
  Tensor k(const Matrix& m) const { return m.view().slice_cols(q_cols(), kv_cols()); }
  Tensor v(const Matrix& m) const { return m.view().slice_cols(q_cols() + kv_cols(), kv_cols()); }
  /// Columns [first, first + count) in double.
  static reference::Numbers part(const Matrix& m, std::int64_t first, std::int64_t count) {
    reference::Numbers numbers;
    for (std::int64_t r = 0; r < m.view().rows(); ++r)
      for (std::int64_t c = first; c < first + count; ++c) numbers.push_back(m.get(r, c));
    return numbers;
  }
  reference::Numbers q_numbers(const Matrix& m) const { return part(m, 0, q_cols()); }
  reference::Numbers k_numbers(const Matrix& m) const { return part(m, q_cols(), kv_cols()); }
  reference::Numbers v_numbers(const Matrix& m) const {
    return part(m, q_cols() + kv_cols(), kv_cols());
  }
  reference::Shape plain_shape() const {
    const auto n = [](std::int64_t x) { return static_cast<reference::Index>(x); };
    return {n(s.batch), n(s.sequence), n(s.heads), n(s.kv_heads), n(s.head_dim)};
  }
  void forward(device::Stream& stream) {
    ops::attention(stream, out, log_sum_exp.view(), q(qkv), k(qkv), v(qkv), s);
  }
  void backward(device::Stream& stream) {
    ops::attention_backward(stream, q(dqkv), k(dqkv), v(dqkv), dout, q(qkv), k(qkv), v(qkv), out,
                            log_sum_exp.view(), delta.view(), s);
  }

  ops::AttentionShape s;
  Matrix qkv, dqkv, out, dout, log_sum_exp, delta;
};

TEST_P(Attention, ForwardEqualsTheReference) {
  for (const auto& shape : all_shapes) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape);
    p.forward(stream);
    expect_near(p.out.numbers(),
                reference::attention(p.q_numbers(p.qkv), p.k_numbers(p.qkv), p.v_numbers(p.qkv),
                                     p.plain_shape()),
                near(), "out");
    EXPECT_TRUE(p.out.gaps_untouched());
  }
}

TEST_P(Attention, BackwardEqualsTheReference) {
  for (const auto& shape : all_shapes) {
    SCOPED_TRACE(shape.sequence);
    Problem p(dtype(), shape);
    p.forward(stream);
    p.backward(stream);
    const auto g =
        reference::attention_backward(p.dout.numbers(), p.q_numbers(p.qkv), p.k_numbers(p.qkv),
                                      p.v_numbers(p.qkv), p.plain_shape());
    // With one key dq and dk are zero, and rounding leaves nothing to compare them with.
    if (shape.sequence > 1) {
      expect_near(p.q_numbers(p.dqkv), g.dq, 2.0 * near(), "dq");
      expect_near(p.k_numbers(p.dqkv), g.dk, 2.0 * near(), "dk");
    }
    expect_near(p.v_numbers(p.dqkv), g.dv, near(), "dv");
    EXPECT_TRUE(p.dqkv.gaps_untouched());
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
  expect_near(p.out.numbers(),
              reference::attention(p.q_numbers(p.qkv), p.k_numbers(p.qkv), p.v_numbers(p.qkv),
                                   p.plain_shape()),
              dtype() == DType::f32 ? 2e-4 : 6e-3, "out");
}

TEST_P(Attention, DoesNotDependOnTheNumberOfThreads) {
  Problem p(dtype(), {2, 130, 6, 3, 10});
  const auto work = [&] {
    p.forward(stream);
    p.backward(stream);
  };
  expect_same_for_any_threads(work, [&] { return p.dqkv.bytes(); });
  expect_same_for_any_threads(work, [&] { return p.out.bytes(); });
}

}  // namespace
}  // namespace llamesh::test
