#include "twin.hpp"

namespace llamesh::test {
namespace {

class CudaTokens : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaTokens, ::testing::Values(DType::f32, DType::bf16), dtype_name);

struct Sizes {
  std::int64_t rows, cols;
  Place place;
};
const Sizes all_sizes[] = {
    {1, 3, {}}, {8, 33, {7, 0}}, {3, 5003, {}}, {4, 8200, {8, 8}}, {5, 1024, {0, 1}}};

TEST_P(CudaTokens, CrossEntropyAndItsGradient) {
  for (const auto& [rows, cols, place] : all_sizes)
    for (const auto gradient : {ops::WithGradient::no, ops::WithGradient::yes}) {
      SCOPED_TRACE(cols);
      auto tokens = random_tokens(rows, cols);
      if (rows > 2) tokens[1] = -1;
      tokens.back() = static_cast<std::int32_t>(cols - 1);
      TwinIntegers targets(tokens);
      Twin logits(dtype(), rows, cols, place, 4.0), losses(DType::f32, 1, rows);
      ops::cross_entropy(host_stream(), losses.host(), logits.host(), targets.host(), 0.25F,
                         gradient);
      ops::cuda::cross_entropy(device_stream(), losses.device(), logits.device(), targets.device(),
                               0.25F, gradient);
      losses.expect_equal(1e-6, "losses", 10.0);
      logits.expect_equal(gradient == ops::WithGradient::no ? 0.0 : near(), "dlogits", 0.25);
    }
}

// The maximum in the first, a middle and the last place of the online sum; minus infinity beside
// it.
TEST_P(CudaTokens, CrossEntropyWithAPeak) {
  for (const std::int64_t peak : {0, 2500, 5002}) {
    Twin logits(dtype(), 1, 5003, {}, 10.0), losses(DType::f32, 1, 1);
    logits.set(0, peak, 90.0);
    logits.set(0, 1, -HUGE_VAL);
    TwinIntegers targets({17});
    ops::cross_entropy(host_stream(), losses.host(), logits.host(), targets.host(), 1.0F,
                       ops::WithGradient::yes);
    ops::cuda::cross_entropy(device_stream(), losses.device(), logits.device(), targets.device(),
                             1.0F, ops::WithGradient::yes);
    losses.expect_equal(1e-6, "loss", 90.0);
    logits.expect_equal(near(), "dlogits");
  }
}

TEST_P(CudaTokens, CrossEntropyIsNotANumberWhereALogitIsNot) {
  Twin logits(dtype(), 1, 40), losses(DType::f32, 1, 1);
  logits.set(0, 3, std::nan(""));
  TwinIntegers targets({7});
  ops::cuda::cross_entropy(device_stream(), losses.device(), logits.device(), targets.device(),
                           1.0F, ops::WithGradient::no);
  const auto bytes = losses.downloaded();
  float loss = 0;
  std::memcpy(&loss, bytes.data(), 4);
  EXPECT_TRUE(std::isnan(loss));
}

TEST_P(CudaTokens, EmbeddingTakesRows) {
  for (const auto& [cols, place] : {std::pair<std::int64_t, Place>{21, {}}, {64, {8, 0}}}) {
    TwinIntegers tokens(random_tokens(50, 11));
    Twin table(dtype(), 11, cols), out(dtype(), 50, cols, place);
    ops::embedding(host_stream(), out.host(), tokens.host(), table.host());
    ops::cuda::embedding(device_stream(), out.device(), tokens.device(), table.device());
    out.expect_equal(0.0, "out");
  }
}

/// Tokens of which one is frequent (a block's warps share its rows) and the last never occurs.
std::vector<std::int32_t> skewed_tokens(std::int64_t count, std::int64_t vocabulary) {
  auto tokens = random_tokens(count, vocabulary - 1);
  for (std::size_t m = 0; m < tokens.size(); m += 2) tokens[m] = 3;
  return tokens;
}

TEST_P(CudaTokens, EmbeddingBackwardSumsEqualTokens) {
  constexpr std::int64_t vocabulary = 40;
  for (const auto result : {DType::f32, DType::bf16})
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto& [count, cols] :
           {std::pair<std::int64_t, std::int64_t>{1, 8}, {70, 21}, {301, 264}, {600, 64}}) {
        SCOPED_TRACE(count);
        TwinIntegers tokens(skewed_tokens(count, vocabulary));
        Twin dout(dtype(), count, cols), dtable(result, vocabulary, cols);
        ops::embedding_backward(host_stream(), dtable.host(), dout.host(), tokens.host(),
                                accumulate);
        ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(),
                                      tokens.device(), accumulate);
        dtable.expect_equal(tolerance(result), "dtable");
        const auto once = dtable.downloaded();
        if (accumulate == Accumulate::yes) continue;
        ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(),
                                      tokens.device(), accumulate);
        EXPECT_TRUE(once == dtable.downloaded()) << "run to run";
      }
}

#ifdef LLAMESH_CUDA_EMULATED
// On a GPU this would end the process's use of the device.
TEST_P(CudaTokens, RefuseWhatIsBeyondTheVocabulary) {
  TwinIntegers indices({3, 11});
  Twin table(dtype(), 11, 4), out(dtype(), 2, 4), logits(dtype(), 2, 11), losses(DType::f32, 1, 2);
  EXPECT_ANY_THROW(
      ops::cuda::embedding(device_stream(), out.device(), indices.device(), table.device()));
  EXPECT_ANY_THROW(ops::cuda::embedding_backward(device_stream(), table.device(), out.device(),
                                                 indices.device(), Accumulate::yes));
  EXPECT_ANY_THROW(ops::cuda::cross_entropy(device_stream(), losses.device(), logits.device(),
                                            indices.device(), 1.0F, ops::WithGradient::no));
}
#endif

}  // namespace
}  // namespace llamesh::test
