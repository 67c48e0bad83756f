#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "ops/cuda/attention/attention_choice.hpp"
#include "support.hpp"
#include "test_matrix.hpp"
#ifdef LLAMESH_CUDA_EMULATED
#include "emulator.hpp"
#endif

namespace llamesh::test {
namespace {

class CudaAttention : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttention, ::testing::Values(DType::f32, DType::bf16),
                         dtype_name);

/// Returns each token's document start for documents with random lengths, some longer than a tile.
std::vector<std::int32_t> random_documents(std::int64_t batch, std::int64_t sequence) {
  std::vector<std::int32_t> starts;
  std::uniform_int_distribution<std::int32_t> length(1, 90);
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int32_t start = 0, next = length(generator());
    for (std::int32_t t = 0; t < sequence; ++t) {
      if (t == next) {
        start = t;
        next = t + length(generator());
      }
      starts.push_back(start);
    }
  }
  return starts;
}

/// Tensors for one call: q, k, v as views into one qkv buffer; its gradient likewise.
struct Problem {
  Problem(DType dtype, const ops::AttentionShape& shape, bool documents, std::int64_t gap = 8)
      : s(shape),
        starts(documents ? random_documents(s.batch, s.sequence) : std::vector<std::int32_t>{}),
        qkv(dtype, tokens(), q_cols() + k_cols() + v_cols(), {gap, 0}),
        dqkv(dtype, tokens(), q_cols() + k_cols() + v_cols(), {gap, 0}),
        out(dtype, tokens(), s.heads * s.value_dim, {gap, 0}),
        dout(dtype, tokens(), s.heads * s.value_dim, {gap, 0}),
        log_sum_exp(DType::f32, s.batch * s.heads, s.sequence),
        delta(DType::f32, s.batch * s.heads, s.sequence) {}

  std::int64_t tokens() const { return s.batch * s.sequence; }
  std::int64_t q_cols() const { return s.heads * s.head_dim; }
  std::int64_t k_cols() const { return s.kv_heads * s.head_dim; }
  std::int64_t v_cols() const { return s.kv_heads * s.value_dim; }
  Tensor q(const Tensor& m) const { return m.slice_cols(0, q_cols()); }
  Tensor k(const Tensor& m) const { return m.slice_cols(q_cols(), k_cols()); }
  Tensor v(const Tensor& m) const { return m.slice_cols(q_cols() + k_cols(), v_cols()); }

  ops::AttentionCall call(Tensor (TestMatrix::*side)()) {
    const Tensor all = (qkv.*side)();
    return {.shape = s,
            .q = q(all),
            .k = k(all),
            .v = v(all),
            .document_starts = side == &TestMatrix::host ? starts.host() : starts.device(),
            .out = (out.*side)(),
            .log_sum_exp = (log_sum_exp.*side)()};
  }
  ops::AttentionGradients gradients(Tensor (TestMatrix::*side)()) {
    const Tensor all = (dqkv.*side)();
    return {
        .dout = (dout.*side)(), .dq = q(all), .dk = k(all), .dv = v(all), .delta = (delta.*side)()};
  }
  void forward() {
    ops::attention(host_stream(), call(&TestMatrix::host));
    ops::cuda::attention(device_stream(), call(&TestMatrix::device));
  }
  void backward() {
    ops::attention_backward(host_stream(), call(&TestMatrix::host), gradients(&TestMatrix::host));
    ops::cuda::attention_backward(device_stream(), call(&TestMatrix::device),
                                  gradients(&TestMatrix::device));
  }

  /// Returns the name of the device implementation.
  std::string name() {
    return ops::cuda::attention_name(device_stream(), call(&TestMatrix::device));
  }
  bool by_cudnn() { return name().starts_with("cuDNN"); }
  bool backward_by_cudnn() {
    const auto both = name();
    const auto at = both.find(", backward ");
    return both.substr(at == std::string::npos ? 0 : at + 11).starts_with("cuDNN");
  }

  ops::AttentionShape s;
  TestIntegers starts;
  TestMatrix qkv, dqkv, out, dout, log_sum_exp, delta;
};

/// Head dims for every instance; sequences shorter than, equal to and longer than a tile; shared
/// and unshared key-value heads.
const ops::AttentionShape all_shapes[] = {
    {2, 1, 1, 1, 6},      {1, 37, 6, 3, 6},   {2, 64, 2, 1, 64},   {1, 130, 2, 1, 128},
    {1, 200, 2, 1, 64},   {2, 65, 2, 1, 80},  {1, 70, 2, 2, 200},  {1, 128, 1, 1, 128},
    {1, 257, 1, 1, 128},  {1, 100, 4, 2, 64}, {2, 67, 4, 2, 128},  {2, 129, 1, 1, 64},
#ifndef LLAMESH_CUDA_EMULATED
    {2, 1000, 8, 2, 128}, {2, 777, 8, 2, 64}, {1, 512, 1, 1, 128},
#endif
};

TEST_P(CudaAttention, BackwardThroughRope) {
  for (const ops::AttentionShape& shape :
       {ops::AttentionShape{1, 37, 6, 3, 6}, {1, 130, 2, 1, 128}, {2, 67, 4, 2, 64}})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << shape.head_dim << (documents ? ", documents" : ""));
      Problem p(dtype(), shape, documents);
      TestMatrix cos_sin(DType::f32, shape.sequence, shape.head_dim);
      auto host = p.gradients(&TestMatrix::host), device = p.gradients(&TestMatrix::device);
      host.cos_sin = cos_sin.host();
      device.cos_sin = cos_sin.device();
      p.forward();
      ops::attention_backward(host_stream(), p.call(&TestMatrix::host), host);
      ops::cuda::attention_backward(device_stream(), p.call(&TestMatrix::device), device);
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
    }
}

TEST_P(CudaAttention, WithASoftcap) {
  for (auto shape : {ops::AttentionShape{1, 37, 6, 3, 6},
                     {1, 130, 2, 1, 128},
                     {2, 67, 4, 2, 64, 40},
                     {1, 70, 2, 1, 256}})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << shape.head_dim << (documents ? ", documents" : ""));
      shape.score_divisor = 4.0F;
      shape.softcap = 1.5F;
      Problem p(dtype(), shape, documents);
      EXPECT_EQ(p.name().find("cuDNN"), std::string::npos) << p.name();
      EXPECT_EQ(p.name().find("wgmma"), std::string::npos) << p.name();
      p.forward();
      p.backward();
      p.out.expect_equal(near(), "out");
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
    }
}

TEST_P(CudaAttention, ForwardAndBackward) {
  for (const auto& shape : all_shapes)
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << shape.sequence << " of " << shape.head_dim
                                        << (documents ? ", documents" : ""));
      Problem p(dtype(), shape, documents);
      p.forward();
      p.backward();
      p.out.expect_equal(near(), "out");
      p.log_sum_exp.expect_equal(dtype() == DType::f32 ? 1e-5 : 1e-3, "log_sum_exp", 1.0);
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
      if (!p.backward_by_cudnn())  // which uses its own scratch instead
        p.delta.expect_equal(dtype() == DType::f32 ? 1e-5 : 1e-2, "delta", 1.0);
    }
}

/// Tensors for one call with queries of part of each sequence.
struct PartProblem {
  PartProblem(DType dtype, const ops::AttentionShape& shape,
              const std::vector<std::int32_t>& document_starts)
      : s(shape),
        starts(document_starts),
        q(dtype, tokens(), s.heads * s.head_dim, {8, 0}),
        dq(dtype, tokens(), s.heads * s.head_dim, {8, 0}),
        out(dtype, tokens(), s.heads * s.value_dim, {16, 0}),
        dout(dtype, tokens(), s.heads * s.value_dim),
        k(dtype, s.batch * s.keys, s.kv_heads * s.head_dim, {8, 0}),
        v(dtype, s.batch * s.keys, s.kv_heads * s.value_dim),
        dk(dtype, s.batch * s.keys, s.kv_heads * s.head_dim),
        dv(dtype, s.batch * s.keys, s.kv_heads * s.value_dim, {8, 0}),
        log_sum_exp(DType::f32, s.batch * s.heads, s.sequence),
        delta(DType::f32, s.batch * s.heads, s.sequence) {}

  std::int64_t tokens() const { return s.batch * s.sequence; }
  ops::AttentionCall call(Tensor (TestMatrix::*side)()) {
    return {.shape = s,
            .q = (q.*side)(),
            .k = (k.*side)(),
            .v = (v.*side)(),
            .document_starts = side == &TestMatrix::host ? starts.host() : starts.device(),
            .out = (out.*side)(),
            .log_sum_exp = (log_sum_exp.*side)()};
  }
  ops::AttentionGradients gradients(Tensor (TestMatrix::*side)()) {
    return {.dout = (dout.*side)(),
            .dq = (dq.*side)(),
            .dk = (dk.*side)(),
            .dv = (dv.*side)(),
            .delta = (delta.*side)()};
  }
  void forward_and_backward() {
    ops::attention(host_stream(), call(&TestMatrix::host));
    ops::attention_backward(host_stream(), call(&TestMatrix::host), gradients(&TestMatrix::host));
    ops::cuda::attention(device_stream(), call(&TestMatrix::device));
    ops::cuda::attention_backward(device_stream(), call(&TestMatrix::device),
                                  gradients(&TestMatrix::device));
  }
  std::string name() {
    return ops::cuda::attention_name(device_stream(), call(&TestMatrix::device));
  }

  ops::AttentionShape s;
  TestIntegers starts;
  TestMatrix q, dq, out, dout, k, v, dk, dv, log_sum_exp, delta;
};

/// Returns the shape for a rank's part of the sequences: piece `rank`, and its mirror image from
/// the end.
ops::AttentionShape part_of_sequence(ops::AttentionShape s, std::int64_t ranks, std::int64_t rank) {
  s.keys = s.sequence;
  s.sequence = s.keys / ranks;
  const auto piece = s.sequence / 2;
  s.positions = {s.sequence, rank * piece, (2 * ranks - 1 - rank) * piece};
  return s;
}

/// Returns the document starts of a part's queries.
std::vector<std::int32_t> random_documents(const ops::AttentionShape& s) {
  const auto all = random_documents(s.batch, s.keys);
  std::vector<std::int32_t> starts;
  for (std::int64_t m = 0; m < s.batch * s.sequence; ++m)
    starts.push_back(
        all[static_cast<std::size_t>(m / s.sequence * s.keys + s.positions[m % s.sequence])]);
  return starts;
}

void expect_equal_to_host(PartProblem& p, double near, double near_sums) {
  p.forward_and_backward();
  p.out.expect_equal(near, "out");
  p.log_sum_exp.expect_equal(near_sums, "log_sum_exp", 1.0);
  p.dq.expect_equal(2.0 * near, "dq", 1.0);
  p.dk.expect_equal(2.0 * near, "dk", 1.0);
  p.dv.expect_equal(2.0 * near, "dv", 1.0);
}

/// Pieces that are whole tiles, or begin and end within tiles; some keys are seen by none of a
/// rank's queries.
TEST_P(CudaAttention, OfPartOfASequence) {
  for (const ops::AttentionShape& whole : {ops::AttentionShape{2, 36, 6, 3, 6},
                                           {1, 60, 2, 1, 80, 13},
                                           {1, 512, 1, 1, 64},
                                           {2, 420, 2, 1, 64},
                                           {1, 300, 1, 1, 64, 70},
                                           {1, 300, 1, 1, 128}})
    for (const std::int64_t ranks : {2, 3})
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        for (const bool documents : {false, true}) {
          if (whole.sequence % (2 * ranks) != 0) continue;
          if (dtype() == DType::f32 && whole.sequence > 100) continue;  // its kernels have no tiles
          const auto s = part_of_sequence(whole, ranks, rank);
          SCOPED_TRACE(::testing::Message() << "rank " << rank << " of " << ranks << ", " << s.keys
                                            << " keys of " << s.head_dim << ", window " << s.window
                                            << (documents ? ", documents" : ""));
          PartProblem p(dtype(), s, documents ? random_documents(s) : std::vector<std::int32_t>{});
          expect_equal_to_host(p, near(), dtype() == DType::f32 ? 1e-5 : 1e-3);
        }
}

ops::AttentionShape with_values(ops::AttentionShape shape, std::int64_t value_dim) {
  shape.value_dim = value_dim;
  return shape;
}

/// Values that are narrower or wider than keys; 192 and 128 dims on tensor cores.
TEST_P(CudaAttention, ValuesOfAnotherWidth) {
  for (const auto& shape :
       {with_values({2, 37, 6, 3, 24}, 16), with_values({1, 37, 2, 1, 16, 5}, 40),
        with_values({1, 150, 2, 1, 192}, 128), with_values({1, 150, 1, 1, 192, 70}, 128)})
    for (const bool documents : {false, true}) {
      if (dtype() == DType::f32 && shape.sequence > 100) continue;  // its kernels have no tiles
      SCOPED_TRACE(::testing::Message() << shape.sequence << " of " << shape.head_dim
                                        << ", values of " << shape.value_dim << ", window "
                                        << shape.window << (documents ? ", documents" : ""));
      Problem p(dtype(), shape, documents);
      p.forward();
      p.backward();
      p.out.expect_equal(near(), "out");
      p.log_sum_exp.expect_equal(dtype() == DType::f32 ? 1e-5 : 1e-3, "log_sum_exp", 1.0);
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
#ifdef LLAMESH_CUDA_EMULATED
      EXPECT_EQ(p.name(),
                shape.head_dim == 192 ? "built-in kernels by mma" : "plain built-in kernels");
#endif
    }
}

TEST_P(CudaAttention, ValuesOfAnotherWidthWithASoftcapAndRope) {
  for (auto shape : {with_values({2, 21, 2, 1, 24}, 16), with_values({1, 70, 1, 1, 192}, 128)}) {
    if (dtype() == DType::f32 && shape.head_dim == 192) continue;
    SCOPED_TRACE(shape.head_dim);
    shape.softcap = 1.5F;
    Problem p(dtype(), shape, /*documents=*/true);
    TestMatrix cos_sin(DType::f32, shape.sequence, shape.head_dim);
    auto host = p.gradients(&TestMatrix::host), device = p.gradients(&TestMatrix::device);
    host.cos_sin = cos_sin.host();
    device.cos_sin = cos_sin.device();
    p.forward();
    ops::attention_backward(host_stream(), p.call(&TestMatrix::host), host);
    ops::cuda::attention_backward(device_stream(), p.call(&TestMatrix::device), device);
    p.out.expect_equal(near(), "out");
    p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
  }
}

TEST_P(CudaAttention, ValuesOfAnotherWidthInPartOfASequence) {
  for (const auto& whole :
       {with_values({2, 36, 6, 3, 24}, 16), with_values({1, 300, 1, 1, 192, 70}, 128)})
    for (const bool documents : {false, true}) {
      if (dtype() == DType::f32 && whole.sequence > 100) continue;
      SCOPED_TRACE(::testing::Message() << whole.head_dim << (documents ? ", documents" : ""));
      const auto s = part_of_sequence(whole, 2, 1);
      PartProblem p(dtype(), s, documents ? random_documents(s) : std::vector<std::int32_t>{});
      expect_equal_to_host(p, near(), dtype() == DType::f32 ? 1e-5 : 1e-3);
    }
}

/// Queries in one run of positions, with more keys than queries. cuDNN takes none of these calls.
TEST_P(CudaAttention, OfNeighboringQueries) {
  for (const auto& [first, count] :
       {std::array<std::int64_t, 2>{0, 130}, {70, 130}, {199, 1}, {128, 72}}) {
    SCOPED_TRACE(first);
    ops::AttentionShape s{1, count, 4, 2, 64};
    s.keys = 200;
    s.positions = {count, first};
    PartProblem p(dtype(), s, {});
    EXPECT_FALSE(p.name().starts_with("cuDNN")) << p.name();
    expect_equal_to_host(p, near(), dtype() == DType::f32 ? 1e-5 : 1e-3);
  }
}

TEST_P(CudaAttention, DividesScoresAsAsked) {
  for (ops::AttentionShape shape :
       {ops::AttentionShape{1, 37, 6, 3, 6}, {2, 67, 4, 2, 64}, {1, 130, 2, 1, 128}}) {
    SCOPED_TRACE(shape.head_dim);
    shape.score_divisor = 3.0F;
    Problem p(dtype(), shape, /*documents=*/true);
    p.forward();
    p.backward();
    p.out.expect_equal(near(), "out");
    p.dqkv.expect_equal(4.0 * near(), "dqkv", 1.0);
  }
}

/// Windows within and across tiles, for each implementation.
TEST_P(CudaAttention, Windows) {
  for (const ops::AttentionShape& shape : {ops::AttentionShape{1, 37, 6, 3, 6, 5},
                                           {2, 150, 1, 1, 64, 1},
                                           {1, 257, 2, 1, 64, 70},
                                           {1, 300, 1, 1, 128, 130},
                                           {1, 65, 2, 1, 80, 64}})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << shape.sequence << " of " << shape.head_dim << ", window "
                                        << shape.window << (documents ? ", documents" : ""));
      Problem p(dtype(), shape, documents);
      p.forward();
      p.backward();
      p.out.expect_equal(near(), "out");
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
    }
}

#ifdef LLAMESH_CUDA_EMULATED
/// Mimics a GPU with 99 KiB of shared memory per block: compute capability 8.6, 8.9, 12.0.
class SmallGpu {
 public:
  SmallGpu() : before_(std::exchange(emulator::max_shared_bytes, 99 * 1024)) {}
  ~SmallGpu() { emulator::max_shared_bytes = before_; }
  SmallGpu(const SmallGpu&) = delete;
  SmallGpu& operator=(const SmallGpu&) = delete;

 private:
  std::int64_t before_;
};

TEST_P(CudaAttention, FitsIntoSmallSharedMemory) {
  const SmallGpu small;
  for (const ops::AttentionShape& shape : {ops::AttentionShape{1, 130, 2, 1, 128},
                                           with_values({1, 70, 1, 1, 192}, 128),
                                           {1, 67, 1, 1, 120},
                                           {1, 70, 2, 2, 200}})
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(shape.head_dim);
      Problem p(dtype(), shape, documents);
      p.forward();
      p.backward();
      p.out.expect_equal(near(), "out");
      p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
      if (dtype() == DType::bf16 && shape.head_dim % 64 == 0) {
        EXPECT_EQ(p.name(), "built-in kernels by mma, backward plain built-in kernels");
      }
    }
}
#endif

// Rows that do not allow 16-byte loads.
TEST_P(CudaAttention, UnalignedRows) {
  Problem p(dtype(), {1, 70, 2, 1, 64}, false, 3);
  p.forward();
  p.backward();
  p.out.expect_equal(near(), "out");
  p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
}

TEST_P(CudaAttention, LargeScoresStayFinite) {
  for (const std::int64_t head_dim : {8, 64}) {
    Problem p(dtype(), {1, 70, 2, 1, head_dim}, false);
    for (std::int64_t r = 0; r < p.tokens(); ++r)
      for (std::int64_t c = 0; c < 2 * head_dim; ++c) p.qkv.set(r, c, 30.0 * p.qkv.get(r, c));
    p.forward();
    p.out.expect_equal(dtype() == DType::f32 ? 2e-4 : 8e-3, "out");
  }
}

// Scores far below zero (-200, which fp32 rounds to 2^-17, giving their exponentials that relative
// error). Their weights would be large for a query beyond the end.
TEST_P(CudaAttention, ScoresBelowZeroLeaveGradientsFinite) {
  Problem p(dtype(), {1, 70, 2, 1, 64}, false);
  for (std::int64_t r = 0; r < p.tokens(); ++r)
    for (std::int64_t c = 0; c < 192; ++c) p.qkv.set(r, c, c < 128 ? 5.0 : -5.0);
  p.forward();
  p.backward();
  const auto rounded = std::max(near(), std::ldexp(2.0, -17));
  p.out.expect_equal(rounded, "out");
  p.dqkv.expect_equal(2.0 * rounded, "dqkv", 1.0);
}

TEST_P(CudaAttention, IsTheSameInEveryRun) {
  if (sanitized) GTEST_SKIP() << "the kernels run elsewhere too";
  for (const bool documents : {false, true}) {
    Problem p(dtype(), {1, 130, 4, 2, 64}, documents);
    p.forward();
    p.backward();
    const auto out = p.out.downloaded(), dqkv = p.dqkv.downloaded();
    p.forward();
    p.backward();
    EXPECT_TRUE(out == p.out.downloaded());
    EXPECT_TRUE(dqkv == p.dqkv.downloaded());
  }
}

// The same shape with and without documents, and with another row layout: cuDNN is chosen per call.
TEST_P(CudaAttention, GoesWhereItCan) {
  const char* text = std::getenv("LLAMESH_ATTENTION");
  const std::string asked = text == nullptr ? "" : text;
  Problem plain(dtype(), {1, 130, 4, 2, 64}, false), documents(dtype(), plain.s, true),
      apart(dtype(), plain.s, false, 3);
  if (asked == "cudnn" && dtype() == DType::bf16) {
    EXPECT_TRUE(plain.by_cudnn()) << plain.name();
  }
  if (asked == "cudnn/builtin" && dtype() == DType::bf16) {
    EXPECT_TRUE(plain.name().starts_with("cuDNN")) << plain.name();
    EXPECT_NE(plain.name().find(", backward built-in kernels by "), std::string::npos);
  }
  if (asked == "builtin" || asked == "mma" || dtype() == DType::f32) {
    EXPECT_FALSE(plain.by_cudnn()) << plain.name();
  }
  if (asked == "mma" && dtype() == DType::bf16) {
    EXPECT_EQ(plain.name(), "built-in kernels by mma");
  }
#ifdef LLAMESH_CUDA_EMULATED  // mimics a Hopper GPU
  if (asked.empty() && dtype() == DType::bf16) {
    EXPECT_EQ(plain.name(), "built-in kernels by wgmma");
  }
#endif
  EXPECT_FALSE(documents.by_cudnn()) << documents.name();
  EXPECT_EQ(apart.name(), "plain built-in kernels");
}

TEST(AttentionChoice, IsReadStrictly) {
  using enum ops::cuda::AttentionChoice;
  using ops::cuda::attention_choices;
  using ops::cuda::AttentionChoices;
  EXPECT_EQ(attention_choices(nullptr), (AttentionChoices{automatic, automatic}));
  EXPECT_EQ(attention_choices("cudnn"), (AttentionChoices{cudnn, cudnn}));
  EXPECT_EQ(attention_choices("builtin"), (AttentionChoices{builtin, builtin}));
  EXPECT_EQ(attention_choices("mma"), (AttentionChoices{mma, mma}));
  EXPECT_EQ(attention_choices("cudnn/builtin"), (AttentionChoices{cudnn, builtin}));
  EXPECT_EQ(attention_choices("builtin/mma"), (AttentionChoices{builtin, mma}));
  for (const char* wrong : {"", "cuDNN", "owner", "1", "cudnn/", "/mma", "cudnn/mma/mma"})
    EXPECT_THROW(attention_choices(wrong), Error) << wrong;
}

// The built-in backward pass for Hopper comes before cuDNN's unless that is asked for.
TEST(AttentionChoice, AsksCudnnPerPass) {
  using enum ops::cuda::AttentionChoice;
  using enum ops::cuda::AttentionPass;
  using ops::cuda::tries_cudnn;
  for (const bool by_wgmma : {false, true}) {
    EXPECT_TRUE(tries_cudnn(forward, automatic, by_wgmma));
    EXPECT_EQ(tries_cudnn(backward, automatic, by_wgmma), !by_wgmma);
    for (const auto pass : {forward, backward}) {
      EXPECT_TRUE(tries_cudnn(pass, cudnn, by_wgmma));
      EXPECT_FALSE(tries_cudnn(pass, builtin, by_wgmma));
      EXPECT_FALSE(tries_cudnn(pass, mma, by_wgmma));
    }
  }
}

TEST(UsedAttention, NamesTheLastCallOfEachPass) {
  Problem p(DType::f32, {1, 9, 2, 1, 8}, false);
  p.forward();
  p.backward();
  EXPECT_EQ(ops::cuda::used_attention(), "plain built-in kernels");
  Problem bf16(DType::bf16, {1, 9, 2, 1, 64}, false);
  bf16.forward();
  const auto both = bf16.name();
  EXPECT_EQ(ops::cuda::used_attention(),
            both.substr(0, both.find(", backward ")) + ", backward plain built-in kernels");
}

/// Attends to keys and values in one cache's columns.
void attend_over_a_cache(DType dtype, const ops::AttentionShape& s, std::int64_t past,
                         double near) {
  SCOPED_TRACE(::testing::Message()
               << s.head_dim << ", values of " << s.value_dim << ", window " << s.window);
  const auto k_cols = s.kv_heads * s.head_dim, v_cols = s.kv_heads * s.value_dim;
  TestMatrix q(dtype, s.sequence, s.heads * s.head_dim, {3, 0}),
      out(dtype, s.sequence, s.heads * s.value_dim, {5, 0});
  TestMatrix cache(dtype, past + s.sequence + 3, k_cols + v_cols);
  TestMatrix log_sum_exp(DType::f32, s.heads, s.sequence);
  const auto attend = [&](const auto& kernel, device::Stream& stream, Tensor (TestMatrix::*side)(),
                          bool wants_sums) {
    const Tensor all = (cache.*side)();
    kernel(stream,
           {.shape = s,
            .q = (q.*side)(),
            .k = all.slice_cols(0, k_cols),
            .v = all.slice_cols(k_cols, v_cols),
            .out = (out.*side)(),
            .log_sum_exp = wants_sums ? (log_sum_exp.*side)() : Tensor()},
           past);
  };
  attend(ops::cached_attention, host_stream(), &TestMatrix::host, true);
  attend(ops::cuda::cached_attention, device_stream(), &TestMatrix::device, true);
  out.expect_equal(near, "out");
  log_sum_exp.expect_equal(dtype == DType::f32 ? 1e-5 : 1e-3, "log_sum_exp", 1.0);
  const auto with_sums = out.downloaded();
  attend(ops::cuda::cached_attention, device_stream(), &TestMatrix::device, false);
  EXPECT_TRUE(out.downloaded() == with_sums) << "without log_sum_exp";
}

TEST_P(CudaAttention, OverACache) {
  for (const auto& [past, count, head_dim] :
       {std::array<std::int64_t, 3>{0, 1, 6}, {0, 9, 64}, {70, 1, 128}, {33, 5, 200}}) {
    for (const std::int64_t window : {0, 3, 40}) {
      ops::AttentionShape s{1, count, 4, 2, head_dim, window};
      s.score_divisor = 3.0F;
      s.softcap = window == 40 ? 2.0F : 0.0F;
      attend_over_a_cache(dtype(), s, past, near());
    }
  }
}

TEST_P(CudaAttention, OverACacheWithValuesOfAnotherWidth) {
  for (const auto& shape : {with_values({1, 3, 4, 2, 24}, 16), with_values({1, 2, 4, 2, 16}, 40),
                            with_values({1, 3, 2, 1, 576}, 512), with_values({1, 2, 2, 2, 64}, 300),
                            with_values({1, 2, 2, 1, 576, 20}, 512)})
    attend_over_a_cache(dtype(), shape, 33, near());
}

/// Random tensors for one call.
struct SinksProblem {
  SinksProblem(DType dtype, DType gradient, std::int64_t rows, std::int64_t tokens,
               std::int64_t all_heads, std::int64_t value_dim, std::int64_t gap,
               std::int64_t dout_offset)
      : batch(rows),
        sequence(tokens),
        heads(all_heads),
        sinks(dtype, 1, heads),
        out(dtype, batch * sequence, heads * value_dim, {gap, gap}),
        dout(dtype, batch * sequence, heads * value_dim, {gap + 8, dout_offset}),
        log_sum_exp(DType::f32, batch * heads, sequence),
        dsinks(gradient, 1, heads) {}

  ops::AttentionSinks call(Tensor (TestMatrix::*side)()) {
    return {.sinks = (sinks.*side)(),
            .out = (out.*side)(),
            .log_sum_exp = (log_sum_exp.*side)().reshape({batch, heads, sequence})};
  }
  void forward() {
    ops::attention_sinks(host_stream(), call(&TestMatrix::host));
    ops::cuda::attention_sinks(device_stream(), call(&TestMatrix::device));
  }
  void backward_on_host(Accumulate accumulate) {
    ops::attention_sinks_backward(host_stream(), call(&TestMatrix::host),
                                  {dout.host(), dsinks.host(), accumulate});
  }
  void backward_on_device(Accumulate accumulate) {
    ops::cuda::attention_sinks_backward(device_stream(), call(&TestMatrix::device),
                                        {dout.device(), dsinks.device(), accumulate});
  }

  std::int64_t batch, sequence, heads;
  TestMatrix sinks, out, dout, log_sum_exp, dsinks;
};

/// Values that allow 16-byte loads and values that do not; blocks of rows that cross from one
/// sequence to the next; more blocks than the threads that add up their sums.
TEST_P(CudaAttention, Sinks) {
  for (const auto& [batch, sequence, heads, value_dim, gap, dout_offset] :
       {std::array<std::int64_t, 6>{1, 1, 2, 6, 3, 0},
        {2, 37, 3, 16, 8, 1},
        {3, 150, 2, 64, 8, 8},
        {2, 70, 4, 40, 3, 0},
        {1, 33000, 1, 1, 0, 0}})
    for (const auto gradient : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(::testing::Message()
                   << batch << " x " << sequence << ", values of " << value_dim);
      SinksProblem p(dtype(), gradient, batch, sequence, heads, value_dim, gap, dout_offset);
      p.forward();
      p.out.expect_equal(near(), "out");
      p.log_sum_exp.expect_equal(4e-6, "log_sum_exp");
      const double sums = std::sqrt(static_cast<double>(batch * sequence * value_dim));
      const auto near_sums = std::max(near(), tolerance(gradient));
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        p.backward_on_host(accumulate);
        p.backward_on_device(accumulate);
        p.dsinks.expect_equal(near_sums, "dsinks", sums);
      }
      p.backward_on_device(Accumulate::no);
      const auto once = p.dsinks.downloaded();
      p.backward_on_device(Accumulate::no);
      EXPECT_TRUE(once == p.dsinks.downloaded()) << "run to run";
    }
}

/// Far above the scores, a sink has all of the weight; far below, none.
TEST_P(CudaAttention, SinksFarFromTheScores) {
  SinksProblem p(dtype(), DType::f32, 2, 21, 3, 16, 8, 0);
  const double scores[] = {200.0, -200.0, 1e30};
  for (std::int64_t h = 0; h < 3; ++h) p.sinks.set(0, h, scores[h]);
  std::vector<double> values, sums;
  for (std::int64_t r = 0; r < 42; ++r) values.push_back(p.out.get(r, 16));
  for (std::int64_t t = 0; t < 21; ++t) sums.push_back(p.log_sum_exp.get(4, t));
  p.forward();
  for (std::int64_t r = 0; r < 42; ++r) {
    EXPECT_EQ(p.out.get(r, 0), 0.0);
    EXPECT_EQ(p.out.get(r, 16), values[static_cast<std::size_t>(r)]);
  }
  for (std::int64_t t = 0; t < 21; ++t) {
    EXPECT_EQ(p.log_sum_exp.get(3, t), 200.0);
    EXPECT_EQ(p.log_sum_exp.get(4, t), sums[static_cast<std::size_t>(t)]);
  }
  p.out.expect_equal(0, "out");
  p.log_sum_exp.expect_equal(0, "log_sum_exp");
  p.backward_on_host(Accumulate::no);
  p.backward_on_device(Accumulate::no);
  for (std::int64_t h = 0; h < 3; ++h) EXPECT_EQ(p.dsinks.get(0, h), 0.0);
  p.dsinks.expect_equal(0, "dsinks");
}

/// attention_backward() takes what attention_sinks() has made of the results.
TEST_P(CudaAttention, BackwardWithSinks) {
  for (const auto& shape : {with_values({2, 37, 6, 3, 24}, 16), {2, 67, 4, 2, 64}}) {
    SCOPED_TRACE(shape.head_dim);
    Problem p(dtype(), shape, /*documents=*/true);
    TestMatrix sinks(dtype(), 1, shape.heads), dsinks(DType::f32, 1, shape.heads);
    const auto call = [&](Tensor (TestMatrix::*side)()) {
      return ops::AttentionSinks{.sinks = (sinks.*side)(),
                                 .out = (p.out.*side)(),
                                 .log_sum_exp = (p.log_sum_exp.*side)().reshape(
                                     {shape.batch, shape.heads, shape.sequence})};
    };
    p.forward();
    ops::attention_sinks(host_stream(), call(&TestMatrix::host));
    ops::cuda::attention_sinks(device_stream(), call(&TestMatrix::device));
    p.backward();
    ops::attention_sinks_backward(host_stream(), call(&TestMatrix::host),
                                  {p.dout.host(), dsinks.host()});
    ops::cuda::attention_sinks_backward(device_stream(), call(&TestMatrix::device),
                                        {p.dout.device(), dsinks.device()});
    p.out.expect_equal(near(), "out");
    p.dqkv.expect_equal(2.0 * near(), "dqkv", 1.0);
    dsinks.expect_equal(2.0 * near(), "dsinks", 1.0);
  }
}

/// Random tensors for one call.
struct LatentProblem {
  LatentProblem(DType dtype, std::int64_t tokens, std::int64_t all_heads, std::int64_t own,
                std::int64_t rope, std::int64_t value, std::int64_t gap)
      : heads(all_heads),
        kv(dtype, tokens, heads * (own + value), {gap, gap}),
        k_rope(dtype, tokens, rope, {gap + 32, 0}),
        k(dtype, tokens, heads * (own + rope), {gap, 0}),
        v(dtype, tokens, heads * value, {gap, 0}) {}

  ops::LatentHeads call(Tensor (TestMatrix::*side)()) {
    return {.heads = heads,
            .kv = (kv.*side)(),
            .k_rope = (k_rope.*side)(),
            .k = (k.*side)(),
            .v = (v.*side)()};
  }

  std::int64_t heads;
  TestMatrix kv, k_rope, k, v;
};

/// Dims that allow 16-byte loads and dims that do not; keys from k_rope alone; more packs than
/// threads.
TEST_P(CudaAttention, LatentHeads) {
  for (const auto& [tokens, heads, own, rope, value, gap] :
       {std::array<std::int64_t, 6>{5, 3, 16, 8, 12, 3},
        {4, 3, 32, 16, 16, 8},
        {3, 2, 6, 2, 5, 0},
        {2, 2, 0, 16, 8, 8},
        {3, 16, 128, 64, 128, 8}}) {
    SCOPED_TRACE(::testing::Message() << own << " + " << rope << ", " << value);
    LatentProblem p(dtype(), tokens, heads, own, rope, value, gap);
    ops::latent_heads(host_stream(), p.call(&TestMatrix::host));
    ops::cuda::latent_heads(device_stream(), p.call(&TestMatrix::device));
    p.k.expect_equal(0, "k");
    p.v.expect_equal(0, "v");
    LatentProblem d(dtype(), tokens, heads, own, rope, value, gap);
    ops::latent_heads_backward(host_stream(), d.call(&TestMatrix::host));
    ops::cuda::latent_heads_backward(device_stream(), d.call(&TestMatrix::device));
    d.kv.expect_equal(0, "kv");
    d.k_rope.expect_equal(0, "k_rope");
  }
}

}  // namespace
}  // namespace llamesh::test
