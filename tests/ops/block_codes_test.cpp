#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "random_tensor.hpp"
#include "source_file.hpp"

namespace llamesh::test {
namespace {

using ops::CodeFormat;

/// Memory of numbers as codes.
struct Codes {
  Codes(std::int64_t parts, std::int64_t part_numel, CodeFormat format)
      : bytes(static_cast<std::size_t>(parts * ops::BlockCodes::part_bytes(part_numel, format))),
        squares(static_cast<std::size_t>(2 * ops::BlockCodes::square_sums)),
        q{.bytes = Tensor(bytes.data(), DType::i8,
                          {parts, ops::BlockCodes::part_bytes(part_numel, format)}),
          .part_numel = part_numel,
          .format = format} {}
  Tensor sums() { return {squares.data(), DType::f32, {std::ssize(squares) / 2, 2}}; }
  std::vector<std::int8_t> bytes;
  std::vector<float> squares;
  ops::BlockCodes q;
};

constexpr std::array all_formats{CodeFormat::int8, CodeFormat::int4, CodeFormat::int8_by_64,
                                 CodeFormat::nf4};

double nearest_code(double x, CodeFormat format) {
  if (format != CodeFormat::nf4) return std::nearbyint(x);
  return double{*std::ranges::min_element(
      ops::nf4_levels, {}, [&](float level) { return std::abs(x - double{level}); })};
}

/// The definition, in double: numbers that share a scale, rounded to codes.
reference::Numbers rounded(const reference::Numbers& x, CodeFormat format) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  const double largest = largest_code(format);
  reference::Numbers result;
  for (const double v : x)
    result.push_back(most < 1e-30 ? 0 : nearest_code(v * largest / most, format) * most / largest);
  return result;
}

/// The same for numbers in parts of `part_numel`, scale by scale.
reference::Numbers rounded_parts(const reference::Numbers& x, std::int64_t part_numel,
                                 CodeFormat format) {
  reference::Numbers result;
  const auto numel = std::ssize(x);
  for (std::int64_t part = 0; part < numel; part += part_numel)
    for (auto first = part; first < std::min(part + part_numel, numel);) {
      const auto end = std::min({first + scale_numel(format), part + part_numel, numel});
      for (const double v : rounded({x.begin() + first, x.begin() + end}, format))
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
    for (const auto format : all_formats)
      for (const double spread : {1e-20, 1.0, 1e30}) {
        SCOPED_TRACE(::testing::Message()
                     << part_numel << ", " << bits_of(format) << " bits, " << spread);
        const std::int64_t parts = 3, numel = parts * part_numel - part_numel / 3;
        const Matrix x(dtype(), 1, numel, 0, spread), y(dtype(), 1, numel);
        Codes codes(parts, part_numel, format);
        ops::quantize_blocks(stream, codes.q, x, {});
        ops::dequantize_blocks(stream, y, codes.q);
        // fp32 rounds a number in the middle of two codes to either.
        const auto expected = rounded_parts(x.numbers(), part_numel, format);
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
  for (const auto format : {CodeFormat::int8, CodeFormat::int4}) {
    const Matrix x(dtype(), 1, numel), y(DType::f32, 1, numel);
    Codes codes(parts, part_numel, format);
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
    EXPECT_NEAR(relative, 2.9 / double{ops::largest_code(format)} / std::sqrt(12.0),
                0.25 * relative);
  }
}

TEST(BlockCodesSum, AddsThePartsInTheirOrder) {
  auto stream = device::Stream::calling_thread();
  for (const std::int64_t part_numel : {1, 63, 256, 600})
    for (const auto format : {CodeFormat::int8, CodeFormat::int4})
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        const std::int64_t parts = 5;
        const Matrix x(DType::f32, parts, part_numel), y(DType::f32, parts, part_numel),
            sum(DType::f32, 1, part_numel);
        Codes codes(parts, part_numel, format);
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
  for (const auto format : {CodeFormat::int8, CodeFormat::int4})
    for (const double bad : {std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(), std::nan("")}) {
      Matrix x(dtype(), 1, numel), y(dtype(), 1, numel);
      for (std::int64_t i = 0; i < ops::BlockCodes::block; ++i) x.set(0, i, 1e-31);
      x.set(0, 300, bad);
      Codes codes(1, numel, format);
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

/// Rounds a dense tensor to codes and back.
void round_through(device::Stream& stream, const Tensor& x, CodeFormat format) {
  Codes codes(1, x.numel(), format);
  ops::quantize_blocks(stream, codes.q, x, {});
  ops::dequantize_blocks(stream, x, codes.q);
}

TEST(Nf4, RoundsAsBitsandbytesDoes) {
  auto stream = device::Stream::calling_thread();
  std::ifstream file(source_file("tests/ops/nf4_bitsandbytes.json"));
  const auto cases = nlohmann::json::parse(file);
  EXPECT_EQ(cases.size(), 6);
  for (const auto& at : cases) {
    const auto dtype = at["dtype"] == "float32" ? DType::f32 : DType::bf16;
    const auto numel = std::ssize(at["x"]);
    const auto number = [&](const char* key, std::int64_t i) {
      return std::bit_cast<float>(at[key][static_cast<std::size_t>(i)].get<std::int32_t>());
    };
    Matrix x(dtype, 1, numel);
    for (std::int64_t i = 0; i < numel; ++i) x.set(0, i, double{number("x", i)});
    round_through(stream, x, CodeFormat::nf4);
    for (std::int64_t i = 0; i < numel; ++i)
      ASSERT_EQ(x.get(0, i), double{number("rounded", i)}) << i << " of " << at["dtype"];
  }
}

TEST(WeightCodes, RoundOnlyOnce) {
  auto stream = device::Stream::calling_thread();
  for (const auto format : {CodeFormat::int8_by_64, CodeFormat::nf4}) {
    const Matrix x(DType::f32, 1, 10000);
    round_through(stream, x, format);
    const auto once = x.numbers();
    round_through(stream, x, format);
    EXPECT_EQ(x.numbers(), once);
  }
}

TEST_P(BlockCodes, DoNotDependOnThreads) {
  const std::int64_t part_numel = 40000, parts = 3;
  const Matrix x(dtype(), parts, part_numel);
  for (const auto format : all_formats) {
    Codes codes(parts, part_numel, format);
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
