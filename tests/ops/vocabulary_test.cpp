#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

// A vocabulary split into parts, as in a tensor-parallel group, against the kernels on the whole.

class VocabularyParts : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, VocabularyParts, ::testing::Values(DType::f32, DType::bf16),
                         dtype_name);

/// Part `rank` out of `parts` of `classes`. Sizes differ if they do not divide evenly.
struct Range {
  Range(std::int64_t classes, std::int64_t parts, std::int64_t rank)
      : first(classes * rank / parts), count(classes * (rank + 1) / parts - first) {}
  std::int64_t first, count;
};

/// Logits for M tokens; each vocabulary part takes a column slice.
struct Losses {
  Losses(DType dtype, std::int64_t rows, std::int64_t classes, std::vector<std::int32_t> tokens,
         double spread = 4.0)
      : whole(dtype, rows, classes, 5, spread),
        cut(dtype, rows, classes, 5),
        targets(std::move(tokens)),
        of_whole(DType::f32, 1, rows),
        of_parts(DType::f32, 1, rows) {
    cut.set_bytes(whole.bytes());
  }

  /// Runs one rank after another, with the gather of their parts in between.
  void run(device::Stream& stream, std::int64_t t, ops::WithGradient gradient) {
    const auto rows = whole.view().rows(), classes = whole.view().cols();
    ops::CrossEntropyCall call{.losses = of_whole.view(),
                               .logits = whole,
                               .targets = targets.tensor,
                               .gradient = gradient,
                               .scale = scale,
                               .softcap = softcap};
    ops::cross_entropy(stream, call);
    const Matrix parts(DType::f32, t * rows, 3);
    for (std::int64_t rank = 0; rank < t; ++rank) {
      const Range r(classes, t, rank);
      ops::cross_entropy_part(stream, parts.view().slice_rows(rank * rows, rows),
                              cut.view().slice_cols(r.first, r.count), targets.tensor, r.first);
    }
    for (std::int64_t rank = 0; rank < t; ++rank) {
      const Range r(classes, t, rank);
      const Matrix mine(DType::f32, 1, rows);
      call.losses = mine.view();
      call.logits = cut.view().slice_cols(r.first, r.count);
      ops::cross_entropy_from_parts(stream, call, parts, r.first);
      if (rank > 0) {
        EXPECT_EQ(mine.bytes(), of_parts.bytes()) << "rank " << rank << " of " << t;
      }
      of_parts.set_bytes(mine.bytes());
    }
  }
  void expect_equal(double near) const {
    expect_near(of_parts.numbers(), of_whole.numbers(), 1e-6, "losses", 10.0);
    expect_near(cut.numbers(), whole.numbers(), near, "dlogits", scale);
    EXPECT_TRUE(cut.gaps_untouched());
  }

  static constexpr float scale = 0.25F;
  float softcap = 0;
  Matrix whole, cut;
  Integers targets;
  Matrix of_whole, of_parts;
};

struct VocabularySizes {
  std::int64_t rows, classes;
};
const VocabularySizes vocabulary_sizes[] = {{1, 3}, {8, 33}, {37, 257}, {3, 5003}};

TEST_P(VocabularyParts, GiveTheCrossEntropyOfTheWhole) {
  for (const auto& [rows, classes] : vocabulary_sizes)
    for (const std::int64_t t : {1, 2, 3})
      for (const auto gradient : {ops::WithGradient::no, ops::WithGradient::yes}) {
        SCOPED_TRACE(::testing::Message() << classes << " classes in " << t << " parts");
        auto tokens = random_tokens(rows, classes);
        if (rows > 2) tokens[1] = -1;
        Losses losses(dtype(), rows, classes, tokens);
        losses.softcap = t == 2 ? 8.0F : 0.0F;
        const auto before = losses.cut.bytes();
        losses.run(stream, t, gradient);
        losses.expect_equal(near());
        if (t == 1) {
          EXPECT_EQ(losses.of_parts.bytes(), losses.of_whole.bytes());
          EXPECT_EQ(losses.cut.bytes(), losses.whole.bytes());
        }
        if (gradient == ops::WithGradient::no) {
          EXPECT_EQ(losses.cut.bytes(), before);
        }
      }
}

TEST_P(VocabularyParts, AreAllIgnoredWhereTheTargetIs) {
  Losses losses(dtype(), 3, 50, {-1, -100, -1});
  losses.run(stream, 2, ops::WithGradient::yes);
  EXPECT_EQ(losses.of_parts.numbers(), reference::Numbers(3, 0.0));
  EXPECT_EQ(losses.cut.numbers(), reference::Numbers(150, 0.0));
  EXPECT_TRUE(losses.cut.gaps_untouched());
}

// The largest logit is in another part than the target, or in the same one; all others vanish next
// to it.
TEST_P(VocabularyParts, OfVeryLargeLogitsGiveFiniteLosses) {
  for (const std::int64_t peak : {0, 2500, 5002}) {
    SCOPED_TRACE(peak);
    Losses losses(dtype(), 2, 5003, {17, 4000}, 1e4);
    for (auto* all : {&losses.whole, &losses.cut}) all->set(0, peak, 3e37);
    losses.run(stream, 3, ops::WithGradient::yes);
    EXPECT_EQ(losses.of_parts.get(0, 0), losses.of_whole.get(0, 0));
    expect_near({losses.cut.get(0, peak)}, {Losses::scale}, near(), "gradient at the maximum");
    expect_near(losses.of_parts.numbers(), losses.of_whole.numbers(), 1e-6, "losses");
    expect_near(losses.cut.numbers(), losses.whole.numbers(), near(), "dlogits", Losses::scale);
  }
}

TEST_P(VocabularyParts, AreNotANumberWhereALogitIsNot) {
  Losses losses(dtype(), 1, 40, {7});
  losses.cut.set(0, 33, std::nan(""));
  losses.run(stream, 2, ops::WithGradient::no);
  EXPECT_TRUE(std::isnan(losses.of_parts.get(0, 0)));
}

TEST_P(VocabularyParts, DoNotDependOnTheNumberOfThreads) {
  Losses losses(dtype(), 130, 700, random_tokens(130, 700));
  const auto before = losses.cut.bytes();
  expect_same_for_any_threads(
      [&] {
        losses.cut.set_bytes(before);
        losses.run(stream, 3, ops::WithGradient::yes);
      },
      [&] { return std::pair(losses.of_parts.bytes(), losses.cut.bytes()); });
}

TEST_P(VocabularyParts, RefuseShapesThatDoNotFit) {
  Losses losses(dtype(), 4, 10, {1, 2, 3, 4});
  const Matrix parts(DType::f32, 7, 3), narrow(DType::f32, 4, 2);
  EXPECT_THROW(ops::cross_entropy_part(stream, narrow, losses.cut, losses.targets.tensor, 0),
               std::exception);
  const ops::CrossEntropyCall call{
      .losses = losses.of_parts.view(), .logits = losses.cut, .targets = losses.targets.tensor};
  EXPECT_THROW(ops::cross_entropy_from_parts(stream, call, parts, 0), std::exception);
}

// Each row comes from one part and is zero in all others, so the sum over parts is exact.
TEST_P(VocabularyParts, GiveTheEmbeddingOfTheWhole) {
  const std::int64_t vocabulary = 11, cols = 21, rows = 50;
  const Integers tokens(random_tokens(rows, vocabulary));
  const Matrix table(dtype(), vocabulary, cols), expected(dtype(), rows, cols);
  ops::embedding(stream, expected, tokens.tensor, table, 0, Accumulate::no);
  for (const std::int64_t t : {1, 2, 3}) {
    reference::Numbers total(static_cast<std::size_t>(rows * cols), 0.0);
    for (std::int64_t rank = 0; rank < t; ++rank) {
      const Range r(vocabulary, t, rank);
      const Matrix out(dtype(), rows, cols, 2);
      ops::embedding(stream, out, tokens.tensor, table.view().slice_rows(r.first, r.count), r.first,
                     Accumulate::no);
      for (std::int64_t m = 0; m < rows; ++m) {
        const auto own = tokens.numbers[static_cast<std::size_t>(m)] - r.first;
        if (0 <= own && own < r.count) continue;
        for (std::int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.get(m, c), 0.0);
      }
      total = sum(total, out.numbers());
      EXPECT_TRUE(out.gaps_untouched());
    }
    EXPECT_EQ(total, expected.numbers()) << t << " parts";
  }
}

TEST_P(VocabularyParts, GiveTheGradientOfTheWholeEmbedding) {
  const std::int64_t vocabulary = 11, cols = 21, rows = 50;
  const Integers tokens(random_tokens(rows, vocabulary - 1));  // the last row is never used
  for (const auto result : {DType::f32, DType::bf16})
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const std::int64_t t : {1, 2, 3}) {
        const Matrix dout(dtype(), rows, cols), whole(result, vocabulary, cols);
        Matrix cut(result, vocabulary, cols);
        cut.set_bytes(whole.bytes());
        ops::embedding_backward(stream, whole, dout, tokens.tensor, 0, accumulate);
        for (std::int64_t rank = 0; rank < t; ++rank) {
          const Range r(vocabulary, t, rank);
          ops::embedding_backward(stream, cut.view().slice_rows(r.first, r.count), dout,
                                  tokens.tensor, r.first, accumulate);
        }
        EXPECT_EQ(cut.bytes(), whole.bytes()) << t << " parts";
      }
}

TEST_P(VocabularyParts, RefuseATokenBelowZero) {
  const Integers tokens({3, -1});
  const Matrix table(dtype(), 11, 4), out(dtype(), 2, 4);
  EXPECT_THROW(ops::embedding(stream, out, tokens.tensor, table, 0, Accumulate::no),
               std::exception);
  EXPECT_THROW(ops::embedding_backward(stream, table, out, tokens.tensor, 0, Accumulate::no),
               std::exception);
}

TEST_P(VocabularyParts, EmbeddingRowsAreAddedToWhatIsThere) {
  const Integers tokens({2, 0, 7, 2, 5});
  const Matrix table(dtype(), 4, 21), out(dtype(), 5, 21, 3), rows(dtype(), 5, 21);
  const auto before = out.numbers();
  ops::embedding(stream, rows, tokens.tensor, table, 2, Accumulate::no);
  ops::embedding(stream, out, tokens.tensor, table, 2, Accumulate::yes);
  expect_near(out.numbers(), sum(before, rows.numbers()), near(), "out");
  EXPECT_TRUE(out.gaps_untouched());
}

TEST(TokenPositions, CountFromTheDocumentsStart) {
  const Integers ids(std::vector<std::int32_t>(8, -1)), starts({0, 0, 2, 2, 0, 1, 1, 1});
  const auto positions = [&](const Tensor& document_starts, std::int64_t first) {
    ops::token_positions(device::compute_stream(), ids.tensor, document_starts, {4, first});
    const auto all = ids.tensor.span<std::int32_t>();
    return std::vector<std::int32_t>(all.begin(), all.end());
  };
  EXPECT_EQ(positions({}, 0), (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(positions({}, 5), (std::vector<std::int32_t>{5, 6, 7, 8, 5, 6, 7, 8}));
  EXPECT_EQ(positions(starts.tensor, 0), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 0, 1, 2}));
  ops::token_positions(device::compute_stream(), ids.tensor, {}, {4, 2, 9});
  const auto runs = ids.tensor.span<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(runs.begin(), runs.end()),
            (std::vector<std::int32_t>{2, 3, 9, 10, 2, 3, 9, 10}));
}

}  // namespace
}  // namespace llamesh::test
