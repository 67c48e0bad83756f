#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

/// Memory of numbers as codes.
struct Codes {
  Codes(std::int64_t parts, std::int64_t part_numel, int bits)
      : bytes(static_cast<std::size_t>(parts * ops::BlockCodes::part_bytes(part_numel, bits))),
        squares(static_cast<std::size_t>(2 * ops::BlockCodes::square_sums)),
        q{.bytes = Tensor(bytes.data(), DType::i8,
                          {parts, ops::BlockCodes::part_bytes(part_numel, bits)}),
          .part_numel = part_numel,
          .bits = bits} {}
  Tensor sums() { return {squares.data(), DType::f32, {std::ssize(squares) / 2, 2}}; }
  std::vector<std::int8_t> bytes;
  std::vector<float> squares;
  ops::BlockCodes q;
};

/// The definition, in double: a block's numbers, rounded to codes.
reference::Numbers rounded(const reference::Numbers& x, double largest_code) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  reference::Numbers result;
  for (const double v : x)
    result.push_back(most < 1e-30 ? 0
                                  : std::nearbyint(v * largest_code / most) * most / largest_code);
  return result;
}

/// The same for numbers in parts of `part_numel`, block by block.
reference::Numbers rounded_parts(const reference::Numbers& x, std::int64_t part_numel,
                                 double largest_code) {
  reference::Numbers result;
  const auto numel = std::ssize(x);
  for (std::int64_t part = 0; part < numel; part += part_numel)
    for (auto first = part; first < std::min(part + part_numel, numel);) {
      const auto end = std::min({first + ops::BlockCodes::block, part + part_numel, numel});
      for (const double v : rounded({x.begin() + first, x.begin() + end}, largest_code))
        result.push_back(v);
      first = end;
    }
  return result;
}

class BlockCodes : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, BlockCodes, ::testing::Values(DType::f32, DType::bf16), dtype_name);

/// Part sizes: everything that pads, and whole blocks with a tail.
std::vector<std::int64_t> part_sizes() {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (const std::int64_t n : {255, 256, 257, 1000, 16448}) sizes.push_back(n);
  return sizes;
}

TEST_P(BlockCodes, AreTheNearestMultiplesOfTheBlocksScale) {
  for (const auto part_numel : part_sizes())
    for (const int bits : {8, 4})
      for (const double spread : {1e-20, 1.0, 1e30}) {
        SCOPED_TRACE(::testing::Message() << part_numel << ", " << bits << " bits, " << spread);
        const std::int64_t parts = 3, numel = parts * part_numel - part_numel / 3;
        const Matrix x(dtype(), 1, numel, 0, spread), y(dtype(), 1, numel);
        Codes codes(parts, part_numel, bits);
        ops::quantize_blocks(stream, codes.q, x, {});
        ops::dequantize_blocks(stream, y, codes.q);
        // fp32 rounds a number in the middle of two codes to either.
        const auto largest_code = bits == 8 ? 127.0 : 7.0;
        const auto expected = rounded_parts(x.numbers(), part_numel, largest_code);
        const auto actual = y.numbers(), original = x.numbers();
        for (std::int64_t i = 0; i < numel; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double own = std::abs(original[at] - expected[at]);
          const double slack = 6e-3 * std::abs(expected[at]) + 1e-5 * own;
          ASSERT_LE(std::abs(actual[at] - original[at]), own + slack) << i << ", seed " << seed;
        }
      }
}

TEST_P(BlockCodes, AddTheirSquares) {
  const std::int64_t part_numel = 30100, parts = 2, numel = 60000;
  for (const int bits : {8, 4}) {
    const Matrix x(dtype(), 1, numel), y(DType::f32, 1, numel);
    Codes codes(parts, part_numel, bits);
    ops::quantize_blocks(stream, codes.q, x, codes.sums());
    ops::quantize_blocks(stream, codes.q, x, codes.sums());
    ops::dequantize_blocks(stream, y, codes.q);
    double errors = 0, numbers = 0, expected_errors = 0, expected_numbers = 0;
    for (std::size_t i = 0; i < codes.squares.size(); i += 2) {
      errors += static_cast<double>(codes.squares[i]);
      numbers += static_cast<double>(codes.squares[i + 1]);
    }
    for (std::int64_t i = 0; i < numel; ++i) {
      expected_errors += 2 * std::pow(x.get(0, i) - y.get(0, i), 2);
      expected_numbers += 2 * std::pow(x.get(0, i), 2);
    }
    EXPECT_NEAR(errors, expected_errors, 1e-5 * expected_errors);
    EXPECT_NEAR(numbers, expected_numbers, 1e-5 * expected_numbers);
    // Normal numbers: the largest of 256 is near 2.9, and an error spreads evenly over a step.
    const double relative = std::sqrt(errors / numbers);
    EXPECT_NEAR(relative, 2.9 / (bits == 8 ? 127 : 7) / std::sqrt(12.0), 0.25 * relative);
  }
}

TEST(BlockCodesSum, AddsThePartsInTheirOrder) {
  auto stream = device::Stream::calling_thread();
  for (const std::int64_t part_numel : {1, 63, 256, 600})
    for (const int bits : {8, 4})
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        const std::int64_t parts = 5;
        const Matrix x(DType::f32, parts, part_numel), y(DType::f32, parts, part_numel),
            sum(DType::f32, 1, part_numel);
        Codes codes(parts, part_numel, bits);
        ops::quantize_blocks(stream, codes.q, x, {});
        ops::dequantize_blocks(stream, y, codes.q);
        reference::Numbers expected = sum.numbers();
        for (std::int64_t i = 0; i < part_numel; ++i) {
          auto& to = expected[static_cast<std::size_t>(i)];
          if (accumulate == Accumulate::no) to = 0;
          for (std::int64_t p = 0; p < parts; ++p) to += y.get(p, i);
        }
        ops::sum_block_parts(stream, sum, codes.q, accumulate);
        expect_near(sum.numbers(), expected, 1e-6, "sum");
      }
}

TEST_P(BlockCodes, KeepZerosAndWhatIsNotFinite) {
  const std::int64_t numel = 3 * ops::BlockCodes::block;
  for (const int bits : {8, 4})
    for (const double bad : {std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(), std::nan("")}) {
      Matrix x(dtype(), 1, numel), y(dtype(), 1, numel);
      for (std::int64_t i = 0; i < ops::BlockCodes::block; ++i) x.set(0, i, 1e-31);
      x.set(0, 300, bad);
      Codes codes(1, numel, bits);
      ops::quantize_blocks(stream, codes.q, x, {});
      ops::dequantize_blocks(stream, y, codes.q);
      const Matrix sum(DType::f32, 1, numel);
      ops::sum_block_parts(stream, sum, codes.q, Accumulate::no);
      for (std::int64_t i = 0; i < numel; ++i) {
        const auto block = i / ops::BlockCodes::block;
        EXPECT_EQ(std::isnan(y.get(0, i)), block == 1) << i;
        EXPECT_EQ(std::isnan(sum.get(0, i)), block == 1) << i;
        if (block == 0) {
          EXPECT_EQ(y.get(0, i), 0.0) << i;
        }
      }
    }
}

TEST_P(BlockCodes, DoNotDependOnThreads) {
  const std::int64_t part_numel = 40000, parts = 3;
  const Matrix x(dtype(), parts, part_numel);
  for (const int bits : {8, 4}) {
    Codes codes(parts, part_numel, bits);
    expect_same_for_any_threads(
        [&] {
          std::ranges::fill(codes.squares, 0.0F);
          ops::quantize_blocks(stream, codes.q, x, codes.sums());
        },
        [&] { return std::pair(codes.bytes, codes.squares); });
  }
}

}  // namespace
}  // namespace llamesh::test
