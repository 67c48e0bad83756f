#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "random_tensor.hpp"
#include "source_file.hpp"

namespace llamesh::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Memory of an FP8 matrix.
struct Fp8 {
  Fp8(std::initializer_list<std::int64_t> shape)
      : values(static_cast<std::size_t>(Tensor(nullptr, DType::e4m3, shape).numel())),
        scales(static_cast<std::size_t>(Tensor(nullptr, DType::e4m3, shape).rows()), -1.0F),
        matrix{.values = Tensor(values.data(), DType::e4m3, shape),
               .scales = Tensor(scales.data(), DType::f32, {std::ssize(scales)})} {}
  double get(std::int64_t r, std::int64_t c) const {
    const auto cols = matrix.values.cols();
    return static_cast<double>(float(values[static_cast<std::size_t>(r * cols + c)])) *
           static_cast<double>(scales[static_cast<std::size_t>(r)]);
  }
  reference::Numbers numbers() const {
    reference::Numbers all;
    for (std::int64_t r = 0; r < matrix.values.rows(); ++r)
      for (std::int64_t c = 0; c < matrix.values.cols(); ++c) all.push_back(get(r, c));
    return all;
  }
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> all;
    for (const auto value : values) all.push_back(value.bits);
    return all;
  }
  std::vector<e4m3> values;
  std::vector<float> scales;
  ops::Fp8Matrix matrix;
};

/// The definition: the smallest power of two for which `largest` is at most 448.
double scale_of(double largest) {
  double scale = 1;
  const double most = std::max(largest, static_cast<double>(1e-12F));
  while (most / scale > 448) scale *= 2;
  while (most / (scale / 2) <= 448) scale /= 2;
  return scale;
}

/// The definition: the nearest E4M3 number, of two the one whose last bit is 0.
std::uint8_t nearest(double x) {
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const auto distance = [&](int c) {
      return std::abs(double(float(e4m3{static_cast<std::uint8_t>(c)})) - std::abs(x));
    };
    if (distance(code) < distance(best) || (distance(code) == distance(best) && code % 2 == 0))
      best = code;
  }
  return static_cast<std::uint8_t>(best + (std::signbit(x) ? 128 : 0));
}

class Fp8Rows : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Fp8Rows, ::testing::Values(DType::f32, DType::bf16), dtype_name);

TEST(E4m3, IsASignFourBitsOfExponentAndThreeOfMantissa) {
  for (int code = 0; code < 256; ++code) {
    const auto value = static_cast<double>(float(e4m3{static_cast<std::uint8_t>(code)}));
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(value, code < 128 ? magnitude : -magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
}

TEST_P(Fp8Rows, HaveTheSmallestScaleAndTheNearestNumbers) {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1}, {3, 7}, {9, 64}, {5, 300}};
  for (const auto& [rows, cols] : sizes)
    for (const double spread : {1e-30, 1e-13, 1e-3, 1.0, 1e5, 1e37}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << ", " << spread);
      Matrix x(dtype(), rows, cols, 5, spread);
      for (std::int64_t c = 0; c < cols; c += 2)  // all exponents of E4M3
        x.set(0, c, x.get(0, c) * std::ldexp(1.0, static_cast<int>(-c % 24)));
      const Fp8 q({rows, cols});
      ops::quantize_rows(stream, q.matrix, x);
      for (std::int64_t r = 0; r < rows; ++r) {
        double largest = 0;
        for (std::int64_t c = 0; c < cols; ++c) largest = std::max(largest, std::abs(x.get(r, c)));
        const double scale = scale_of(largest);
        ASSERT_EQ(static_cast<double>(q.scales[static_cast<std::size_t>(r)]), scale);
        for (std::int64_t c = 0; c < cols; ++c)
          ASSERT_EQ(q.values[static_cast<std::size_t>(r * cols + c)].bits,
                    nearest(x.get(r, c) / scale))
              << x.get(r, c) << " / " << scale << ", seed " << seed;
      }
      EXPECT_TRUE(x.gaps_untouched());
    }
}

TEST(Fp8Rounding, GoesToTheEvenNeighborInTheMiddle) {
  auto stream = device::Stream::calling_thread();
  std::vector<float> x = {448};  // the scale is 1
  std::vector<std::uint8_t> expected = {0x7e};
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = float(e4m3{static_cast<std::uint8_t>(code)}),
               high = float(e4m3{static_cast<std::uint8_t>(code + 1)});
    const float middle = (low + high) / 2;
    for (const float value :
         {low, std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 500.0F)}) {
      x.push_back(value);
      x.push_back(-value);
      const auto bits = nearest(static_cast<double>(value));
      expected.push_back(bits);
      expected.push_back(bits | 128U);
    }
  }
  const Fp8 q({1, std::ssize(x)});
  ops::quantize_rows(stream, q.matrix, Tensor(x.data(), DType::f32, {1, std::ssize(x)}));
  EXPECT_EQ(q.scales[0], 1.0F);
  EXPECT_EQ(q.bits(), expected);
}

TEST_P(Fp8Rows, ThatAreNotFiniteBecomeNan) {
  for (const float bad : {nan, infinity, -infinity}) {
    Matrix x(dtype(), 3, 21);
    x.set(1, 20, static_cast<double>(bad));
    const Fp8 q({3, 21}), columns({21, 3});
    ops::quantize_rows(stream, q.matrix, x);
    ops::quantize_columns(stream, columns.matrix, x);
    for (std::int64_t r = 0; r < 3; ++r)
      for (std::int64_t c = 0; c < 21; ++c) {
        EXPECT_EQ(std::isnan(q.get(r, c)), r == 1) << r << " " << c;
        EXPECT_EQ(std::isnan(columns.get(c, r)), c == 20) << r << " " << c;
      }
  }
}

TEST(Fp8Torchao, QuantizesToTheSameBits) {
  auto stream = device::Stream::calling_thread();
  std::ifstream file(source_file("tests/ops/fp8_torchao.json"));
  const auto cases = nlohmann::json::parse(file);
  EXPECT_EQ(cases.size(), 12);
  for (const auto& at : cases) {
    const auto rows = at["rows"].get<std::int64_t>(), cols = at["cols"].get<std::int64_t>();
    std::vector<float> x, scales;
    for (const auto& bits : at["x"]) x.push_back(std::bit_cast<float>(bits.get<std::int32_t>()));
    for (const auto& bits : at["scales"])
      scales.push_back(std::bit_cast<float>(bits.get<std::int32_t>()));
    const Fp8 q({rows, cols});
    ops::quantize_rows(stream, q.matrix, Tensor(x.data(), DType::f32, {rows, cols}));
    EXPECT_EQ(q.scales, scales);
    EXPECT_EQ(q.bits(), at["values"].get<std::vector<std::uint8_t>>());
  }
}

TEST_P(Fp8Rows, ColumnsAreTheRowsOfTheTransposedMatrices) {
  for (const auto& [matrices, rows, cols] :
       {std::tuple{1, 1, 1}, {1, 5, 70}, {1, 131, 64}, {3, 67, 129}, {2, 64, 3}}) {
    const Matrix x(dtype(), matrices * rows, cols);
    const Tensor stacked(x.view().data(), dtype(), {matrices, rows, cols});
    const Fp8 q({matrices, cols, rows});
    ops::quantize_columns(stream, q.matrix, stacked);
    for (int i = 0; i < matrices; ++i) {
      Matrix transposed(dtype(), cols, rows);
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < cols; ++c) transposed.set(c, r, x.get(i * rows + r, c));
      const Fp8 expected({cols, rows});
      ops::quantize_rows(stream, expected.matrix, transposed);
      for (int c = 0; c < cols; ++c)
        for (int r = 0; r < rows; ++r)
          ASSERT_EQ(q.get(i * cols + c, r), expected.get(c, r)) << i << " " << r << " " << c;
    }
  }
}

TEST_P(Fp8Rows, AreExactlyNumbersOfBothTypes) {
  for (const double spread : {1e-30, 1.0, 1e30}) {
    const Matrix x(dtype(), 7, 77, 0, spread);
    const Fp8 q({7, 77});
    ops::quantize_rows(stream, q.matrix, x);
    for (const auto result : {DType::f32, DType::bf16}) {
      const Matrix y(result, 7, 77);
      ops::dequantize_rows(stream, y, q.matrix);
      EXPECT_EQ(y.numbers(), q.numbers());
    }
  }
}

TEST_P(Fp8Rows, ColumnsOfCodesAreThoseOfTheirNumbers) {
  for (const auto& [matrices, rows, cols] :
       {std::tuple{1, 1, 1}, {1, 5, 70}, {1, 131, 64}, {3, 67, 129}, {2, 64, 3}}) {
    const Matrix x(dtype(), matrices * rows, cols, 0, 1e3), numbers(dtype(), matrices * rows, cols);
    const Fp8 w({matrices, rows, cols}), q({matrices, cols, rows}),
        expected({matrices, cols, rows});
    ops::quantize_rows(stream, w.matrix, x);
    ops::requantize_columns(stream, q.matrix, w.matrix);
    ops::dequantize_rows(stream, numbers, w.matrix);
    ops::quantize_columns(stream, expected.matrix,
                          Tensor(numbers.view().data(), dtype(), {matrices, rows, cols}));
    EXPECT_EQ(q.bits(), expected.bits());
    EXPECT_EQ(q.scales, expected.scales);
  }
}

/// A matrix whose rows ranks cut.
struct DividedFp8 {
  DividedFp8(const Tensor& x, std::int64_t part_numel)
      : whole(x),
        numel(part_numel),
        parts((x.numel() + numel - 1) / numel),
        codes({x.rows(), x.cols()}) {}
  std::int64_t count(std::int64_t part) const {
    return std::min(numel, whole.numel() - part * numel);
  }
  Tensor numbers(std::int64_t part) const { return whole.slice(part * numel, count(part)); }
  ops::Fp8Run run(std::int64_t part) const {
    const auto& all = codes.matrix;
    return {.first = part * numel,
            .cols = whole.cols(),
            .scales = all.scales,
            .values = all.values.reshape({whole.numel()}).slice(part * numel, count(part))};
  }
  void agree_on_scales(device::Stream& stream) const {
    std::vector<std::int32_t> first_rows;
    std::vector<float> maxima(static_cast<std::size_t>(parts * whole.rows()), 0.0F);
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto first = part * numel / whole.cols();
      const auto last = (part * numel + count(part) - 1) / whole.cols();
      first_rows.push_back(static_cast<std::int32_t>(first));
      ops::row_maxima(stream,
                      Tensor(maxima.data() + part * whole.rows(), DType::f32, {last - first + 1}),
                      numbers(part), run(part));
    }
    ops::row_scales(stream, codes.matrix.scales,
                    Tensor(maxima.data(), DType::f32, {parts, whole.rows()}),
                    Tensor(first_rows.data(), DType::i32, {parts}));
  }
  Tensor whole;
  std::int64_t numel, parts;
  Fp8 codes;
};

TEST_P(Fp8Rows, AreTheSameIfRanksDivideTheirElements) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 7}, {9, 64}, {5, 300}, {70, 33}})
    for (const std::int64_t part_numel : {1, 5, 32, 96, 1000}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " by " << part_numel);
      Matrix x(dtype(), rows, cols, 0, 3.0);
      if (rows > 2) x.set(2, cols / 2, static_cast<double>(infinity));
      const Fp8 expected({rows, cols});
      ops::quantize_rows(stream, expected.matrix, x);
      const DividedFp8 divided(x.view(), part_numel);
      divided.agree_on_scales(stream);
      for (std::int64_t part = 0; part < divided.parts; ++part)
        ops::quantize_run(stream, divided.run(part), divided.numbers(part));
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c)
          ASSERT_TRUE(divided.codes.get(r, c) == expected.get(r, c) ||
                      (r == 2 && std::isnan(divided.codes.get(r, c))))
              << r << " " << c;
    }
}

TEST_P(Fp8Rows, DoNotDependOnThreads) {
  const Matrix x(dtype(), 300, 200);
  const Fp8 rows({300, 200}), columns({200, 300});
  expect_same_for_any_threads(
      [&] {
        ops::quantize_rows(stream, rows.matrix, x);
        ops::quantize_columns(stream, columns.matrix, x);
      },
      [&] {
        return std::tuple{rows.bits(), rows.scales, columns.bits(), columns.scales};
      });
}

TEST_P(Fp8Rows, AreMultipliedAsTheirNumbers) {
  const std::array<std::int64_t, 3> sizes[] = {{1, 6, 3}, {37, 64, 257}, {1030, 40, 70}};
  for (const auto& [m, in, out] : sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      const Matrix x(DType::f32, m, in), w(DType::f32, out, in), y(dtype(), m, out, 3);
      const Fp8 xq({m, in}), wq({out, in});
      ops::quantize_rows(stream, xq.matrix, x);
      ops::quantize_rows(stream, wq.matrix, w);
      const auto before = y.numbers();
      ops::linear_fp8(stream, y, xq.matrix, wq.matrix, accumulate);
      const auto exact = reference::product(
          xq.numbers(), false, wq.numbers(), true, static_cast<reference::Index>(m),
          static_cast<reference::Index>(out), static_cast<reference::Index>(in));
      expect_near(y.numbers(), accumulate == Accumulate::yes ? sum(before, exact) : exact,
                  tolerance(dtype()), "y");
      EXPECT_TRUE(y.gaps_untouched());
    }
}

TEST_P(Fp8Rows, AreMultipliedByExperts) {
  constexpr std::int64_t experts = 3, in = 24, out = 10, rows = 17;
  const Integers starts({0, 5, 5, rows});
  const Matrix x(dtype(), rows, in), w(dtype(), experts * out, in), y(dtype(), rows, out);
  const Fp8 xq({rows, in}), wq({experts, out, in});
  ops::quantize_rows(stream, xq.matrix, x);
  ops::quantize_rows(stream, wq.matrix, w);
  ops::grouped_linear_fp8(stream, y, xq.matrix, wq.matrix, starts.tensor, Accumulate::no);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t expert = r < 5 ? 0 : 2;
      double expected = 0;
      for (std::int64_t i = 0; i < in; ++i) expected += xq.get(r, i) * wq.get(expert * out + o, i);
      EXPECT_NEAR(y.get(r, o), expected, 30 * tolerance(dtype())) << r << " " << o;
    }
}

}  // namespace
}  // namespace llamesh::test
