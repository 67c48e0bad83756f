#include <algorithm>

#include "test_matrix.hpp"

namespace llamesh::test {
namespace {

class CudaTokens : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaTokens, ::testing::Values(DType::f32, DType::bf16), dtype_name);

struct TokenSizes {
  std::int64_t rows, cols;
  Place place;
};
const TokenSizes token_sizes[] = {
    {1, 3, {}}, {8, 33, {7, 0}}, {3, 5003, {}}, {4, 8200, {8, 8}}, {5, 1024, {0, 1}}};

TEST_P(CudaTokens, CrossEntropyAndItsGradient) {
  for (const auto& [rows, cols, place] : token_sizes)
    for (const auto gradient : {ops::WithGradient::no, ops::WithGradient::yes})
      for (const float softcap : {0.0F, 8.0F}) {
        SCOPED_TRACE(cols);
        auto tokens = random_tokens(rows, cols);
        if (rows > 2) tokens[1] = -1;
        tokens.back() = static_cast<std::int32_t>(cols - 1);
        TestIntegers targets(tokens);
        TestMatrix logits(dtype(), rows, cols, place, 4.0), losses(DType::f32, 1, rows);
        ops::cross_entropy(host_stream(), {losses.host(), logits.host(), targets.host(), gradient,
                                           0.25F, softcap});
        ops::cuda::cross_entropy(device_stream(), {losses.device(), logits.device(),
                                                   targets.device(), gradient, 0.25F, softcap});
        losses.expect_equal(1e-6, "losses", 10.0);
        logits.expect_equal(gradient == ops::WithGradient::no ? 0.0 : near(), "dlogits", 0.25);
      }
}

TEST_P(CudaTokens, CrossEntropyWithFactorsOfRows) {
  TestIntegers targets({5, -1, 0, 39});
  TestMatrix logits(dtype(), 4, 40, {}, 4.0), losses(DType::f32, 1, 4), factors(DType::f32, 1, 4);
  ops::cross_entropy(host_stream(), {losses.host(), logits.host(), targets.host(),
                                     ops::WithGradient::yes, 0.25F, 0.0F, factors.host()});
  ops::cuda::cross_entropy(
      device_stream(), {losses.device(), logits.device(), targets.device(), ops::WithGradient::yes,
                        0.25F, 0.0F, factors.device()});
  losses.expect_equal(1e-6, "losses", 10.0);
  logits.expect_equal(near(), "dlogits", 0.25);
}

TEST(CudaPairs, Losses) {
  constexpr std::int64_t rows = 900, pairs = 7;
  std::vector<std::int32_t> of_tokens(rows, -1);  // two pieces of a row: documents come twice
  for (std::int64_t m = 0; m < rows - 20; ++m)
    of_tokens[static_cast<std::size_t>(m)] = static_cast<std::int32_t>(m * 2 * pairs / 450 % 14);
  TestIntegers documents(of_tokens);
  TestMatrix losses(DType::f32, 1, rows), log_probs(DType::f32, 1, 2 * pairs);
  TestMatrix references(DType::f32, 1, 2 * pairs, {}, 20.0), tokens(DType::f32, 1, 2 * pairs);
  TestMatrix factors(DType::f32, 1, rows), results(DType::f32, ops::pair_results, pairs);
  for (std::int64_t d = 0; d < 2 * pairs; ++d) tokens.set(0, d, static_cast<double>(d + 3));
  ops::log_probs_of_documents(host_stream(), log_probs.host(), losses.host(), documents.host());
  ops::cuda::log_probs_of_documents(device_stream(), log_probs.device(), losses.device(),
                                    documents.device());
  log_probs.expect_equal(1e-6, "log-probabilities", 1.0);
  for (const auto kind : {ops::PairLoss::dpo, ops::PairLoss::ipo}) {
    ops::pair_losses(host_stream(),
                     {factors.host(), results.host(), log_probs.host(), references.host(),
                      tokens.host(), documents.host(), kind, 0.1F});
    ops::cuda::pair_losses(device_stream(),
                           {factors.device(), results.device(), log_probs.device(),
                            references.device(), tokens.device(), documents.device(), kind, 0.1F});
    results.expect_equal(1e-5, "results", 1.0);
    factors.expect_equal(1e-5, "factors", 0.1);
  }
}

// The maximum in the first, a middle and the last place in the online sum, next to minus infinity.
TEST_P(CudaTokens, CrossEntropyWithAPeak) {
  for (const std::int64_t peak : {0, 2500, 5002}) {
    TestMatrix logits(dtype(), 1, 5003, {}, 10.0), losses(DType::f32, 1, 1);
    logits.set(0, peak, 90.0);
    logits.set(0, 1, -HUGE_VAL);
    TestIntegers targets({17});
    ops::cross_entropy(host_stream(),
                       {losses.host(), logits.host(), targets.host(), ops::WithGradient::yes});
    ops::cuda::cross_entropy(device_stream(), {losses.device(), logits.device(), targets.device(),
                                               ops::WithGradient::yes});
    losses.expect_equal(1e-6, "loss", 90.0);
    logits.expect_equal(near(), "dlogits");
  }
}

TEST_P(CudaTokens, CrossEntropyIsNotANumberWhereALogitIsNot) {
  TestMatrix logits(dtype(), 1, 40), losses(DType::f32, 1, 1);
  logits.set(0, 3, std::nan(""));
  TestIntegers targets({7});
  ops::cuda::cross_entropy(device_stream(), {losses.device(), logits.device(), targets.device()});
  const auto bytes = losses.downloaded();
  float loss = 0;
  std::memcpy(&loss, bytes.data(), 4);
  EXPECT_TRUE(std::isnan(loss));
}

// Vocabulary parts: columns of one logits matrix, 16-byte aligned or not. The gather of all parts
// comes in between.
TEST_P(CudaTokens, CrossEntropyOfParts) {
  for (const auto& [rows, cols, place] : token_sizes)
    for (const std::int64_t t : {1, 2, 3})
      for (const auto gradient : {ops::WithGradient::no, ops::WithGradient::yes}) {
        SCOPED_TRACE(cols);
        auto tokens = random_tokens(rows, cols);
        if (rows > 2) tokens[1] = -1;
        TestIntegers targets(tokens);
        TestMatrix logits(dtype(), rows, cols, place, 4.0), losses(DType::f32, 1, rows);
        TestMatrix parts(DType::f32, t * rows, 3);
        const auto first = [&](std::int64_t rank) { return cols * rank / t; };
        const auto mine = [&](const Tensor& all, std::int64_t rank) {
          return all.slice_cols(first(rank), first(rank + 1) - first(rank));
        };
        for (std::int64_t r = 0; r < t; ++r) {
          ops::cross_entropy_part(host_stream(), parts.host().slice_rows(r * rows, rows),
                                  mine(logits.host(), r), targets.host(), first(r));
          ops::cuda::cross_entropy_part(device_stream(), parts.device().slice_rows(r * rows, rows),
                                        mine(logits.device(), r), targets.device(), first(r));
        }
        parts.expect_equal(1e-5, "parts");
        for (std::int64_t r = 0; r < t; ++r) {
          ops::cross_entropy_from_parts(
              host_stream(),
              {losses.host(), mine(logits.host(), r), targets.host(), gradient, 0.25F},
              parts.host(), first(r));
          ops::cuda::cross_entropy_from_parts(
              device_stream(),
              {losses.device(), mine(logits.device(), r), targets.device(), gradient, 0.25F},
              parts.device(), first(r));
          losses.expect_equal(1e-6, "losses", 10.0);
        }
        logits.expect_equal(gradient == ops::WithGradient::no ? 0.0 : near(), "dlogits", 0.25);
      }
}

// A single part is the whole vocabulary: bitwise equal.
TEST_P(CudaTokens, CrossEntropyOfOnePartIsThatOfTheWhole) {
  for (const auto& [rows, cols, place] : token_sizes) {
    SCOPED_TRACE(cols);
    TestIntegers targets(random_tokens(rows, cols));
    TestMatrix logits(dtype(), rows, cols, place, 4.0), losses(DType::f32, 1, rows);
    const auto before = logits.downloaded();
    const ops::CrossEntropyCall call{losses.device(), logits.device(), targets.device(),
                                     ops::WithGradient::yes, 0.25F};
    ops::cuda::cross_entropy(device_stream(), call);
    const auto whole = std::pair(losses.downloaded(), logits.downloaded());
    logits.set(0, 0, logits.get(0, 0));  // restores them
    ASSERT_EQ(logits.downloaded(), before);
    TestMatrix part(DType::f32, rows, 3);
    ops::cuda::cross_entropy_part(device_stream(), part.device(), logits.device(), targets.device(),
                                  0);
    ops::cuda::cross_entropy_from_parts(device_stream(), call, part.device(), 0);
    EXPECT_TRUE(whole == std::pair(losses.downloaded(), logits.downloaded()));
  }
}

/// The whole vocabulary of 11, its first rows, and others.
const std::int64_t parts_of_11[][2] = {{0, 11}, {0, 4}, {4, 7}};

TEST_P(CudaTokens, EmbeddingTakesRows) {
  for (const auto& [cols, place] : {std::pair<std::int64_t, Place>{21, {}}, {64, {8, 0}}})
    for (const auto& [first_row, rows] : parts_of_11) {
      SCOPED_TRACE(first_row);
      TestIntegers tokens(random_tokens(50, 11));
      TestMatrix table(dtype(), rows, cols), out(dtype(), 50, cols, place);
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        ops::embedding(host_stream(), out.host(), tokens.host(), table.host(), first_row,
                       accumulate);
        ops::cuda::embedding(device_stream(), out.device(), tokens.device(), table.device(),
                             first_row, accumulate);
        out.expect_equal(0.0, "out");
      }
    }
}

/// Returns tokens in which one is frequent (blocks share the columns of its sum) and the last never
/// occurs.
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
        TestIntegers tokens(skewed_tokens(count, vocabulary));
        TestMatrix dout(dtype(), count, cols), dtable(result, vocabulary, cols);
        ops::embedding_backward(host_stream(), dtable.host(), dout.host(), tokens.host(), 0,
                                accumulate);
        ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(),
                                      tokens.device(), 0, accumulate);
        dtable.expect_equal(tolerance(result), "dtable");
        const auto once = dtable.downloaded();
        if (accumulate == Accumulate::yes) continue;
        ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(),
                                      tokens.device(), 0, accumulate);
        EXPECT_TRUE(once == dtable.downloaded()) << "run to run";
      }
}

// Runs around the length from which blocks share a sum, at any offset.
TEST_P(CudaTokens, EmbeddingBackwardOfRunsOfAnyLength) {
  std::vector<std::int32_t> runs;
  for (const auto& [token, length] : {std::pair{1, 3}, {2, 15}, {3, 16}, {5, 17}, {6, 1}, {9, 40}})
    runs.insert(runs.end(), static_cast<std::size_t>(length), token);
  const auto count = std::ssize(runs);
  std::ranges::shuffle(runs, generator());
  TestIntegers tokens(runs);
  TestMatrix dout(dtype(), count, 72), dtable(DType::f32, 11, 72);
  ops::embedding_backward(host_stream(), dtable.host(), dout.host(), tokens.host(), 0,
                          Accumulate::yes);
  ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(), tokens.device(), 0,
                                Accumulate::yes);
  dtable.expect_equal(tolerance(DType::f32), "dtable");
}

// Token 3, the frequent one, is inside the part, or before it.
TEST_P(CudaTokens, EmbeddingBackwardOfAPart) {
  for (const std::int64_t first_row : {2, 5})
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      SCOPED_TRACE(first_row);
      TestIntegers tokens(skewed_tokens(70, 40));
      TestMatrix dout(dtype(), 70, 21), dtable(DType::f32, 20, 21);
      ops::embedding_backward(host_stream(), dtable.host(), dout.host(), tokens.host(), first_row,
                              accumulate);
      ops::cuda::embedding_backward(device_stream(), dtable.device(), dout.device(),
                                    tokens.device(), first_row, accumulate);
      dtable.expect_equal(tolerance(DType::f32), "dtable");
    }
}

#ifdef LLAMESH_CUDA_EMULATED
// On a GPU this would make the device unusable for the process.
TEST_P(CudaTokens, RefuseWhatIsInNoVocabulary) {
  TestIntegers below({3, -1}), beyond({3, 11});
  TestMatrix table(dtype(), 11, 4), out(dtype(), 2, 4), logits(dtype(), 2, 11),
      losses(DType::f32, 1, 2);
  EXPECT_ANY_THROW(ops::cuda::embedding(device_stream(), out.device(), below.device(),
                                        table.device(), 0, Accumulate::no));
  EXPECT_ANY_THROW(ops::cuda::embedding_backward(device_stream(), table.device(), out.device(),
                                                 below.device(), 0, Accumulate::yes));
  EXPECT_ANY_THROW(ops::cuda::cross_entropy(device_stream(),
                                            {losses.device(), logits.device(), beyond.device()}));
}
#endif

TEST(CudaPositions, CountFromTheDocumentsStart) {
  for (const std::int32_t first : {0, 5}) {
    TestIntegers ids(std::vector<std::int32_t>(600, -1));
    std::vector<std::int32_t> numbers;
    for (std::int32_t m = 0; m < 600; ++m) numbers.push_back((first + m % 300) / 7 * 7);
    TestIntegers starts(numbers), none({});
    for (auto* documents : {&none, &starts}) {
      ops::token_positions(host_stream(), ids.host(), documents->host(), {300, first});
      ops::cuda::token_positions(device_stream(), ids.device(), documents->device(), {300, first});
      EXPECT_EQ(ids.downloaded(), ids.numbers());
    }
  }
}

}  // namespace
}  // namespace llamesh::test
