#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <random>

#include "device/buffer.hpp"
#include "ops/ops.hpp"
#include "reference.hpp"

namespace llamesh::test {

/// Seed for every test in a file; printed with each failure.
inline constexpr unsigned seed = 20240817;

inline std::mt19937& generator() {
  static std::mt19937 random(seed);
  return random;
}

/// A matrix in its own memory, with `gap` extra elements between rows. The gaps contain a sentinel
/// that no kernel may touch.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0,
         double spread = 1.0)
      : buffer_(std::max<std::int64_t>(rows * (cols + gap), 1) * size_of(dtype)),
        whole_(buffer_.tensor(dtype, {rows, cols + gap})),
        view_(whole_.slice_cols(0, cols)) {
    std::normal_distribution<double> normal(0.0, spread);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols + gap; ++c)
        set(r, c, c < cols ? normal(generator()) : sentinel);
  }
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)
  const Tensor& view() const { return view_; }

  /// Returns the elements, dense, in double.
  reference::Numbers numbers() const {
    reference::Numbers all;
    for (std::int64_t r = 0; r < view_.rows(); ++r)
      for (std::int64_t c = 0; c < view_.cols(); ++c) all.push_back(get(r, c));
    return all;
  }
  bool gaps_untouched() const {
    for (std::int64_t r = 0; r < whole_.rows(); ++r)
      for (auto c = view_.cols(); c < whole_.cols(); ++c)
        if (get(r, c) != sentinel) return false;
    return true;
  }
  std::vector<std::byte> bytes() const {
    return {buffer_.data(), buffer_.data() + buffer_.bytes()};
  }
  void set_bytes(const std::vector<std::byte>& all) {
    std::memcpy(buffer_.data(), all.data(), all.size());
  }
  void set(std::int64_t r, std::int64_t c, double value) {
    const auto i = r * whole_.cols() + c;
    if (whole_.dtype() == DType::f32)
      whole_.as<float>()[i] = static_cast<float>(value);
    else
      whole_.as<bf16>()[i] = bf16(static_cast<float>(value));
  }
  double get(std::int64_t r, std::int64_t c) const {
    const auto i = r * whole_.cols() + c;
    return whole_.dtype() == DType::f32
               ? static_cast<double>(whole_.as<float>()[i])
               : static_cast<double>(static_cast<float>(whole_.as<bf16>()[i]));
  }

 private:
  static constexpr double sentinel = 42.0;
  device::Buffer buffer_;
  Tensor whole_, view_;
};

/// int32 values in their own memory; the tensor is empty if there are none.
struct Integers {
  explicit Integers(const std::vector<std::int32_t>& values) : numbers(values) {
    if (!values.empty()) tensor = Tensor(numbers.data(), DType::i32, {std::ssize(values)});
  }
  std::vector<std::int32_t> numbers;
  Tensor tensor;
};

/// Returns document starts (B, T) for random lengths from 1 to `longest`.
inline std::vector<std::int32_t> random_documents(std::int64_t batch, std::int64_t sequence,
                                                  std::int64_t longest) {
  std::uniform_int_distribution<std::int64_t> length(1, longest);
  std::vector<std::int32_t> starts;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0, start = 0, end = length(generator()); i < sequence; ++i) {
      if (i == end) {
        start = end;
        end += length(generator());
      }
      starts.push_back(static_cast<std::int32_t>(start));
    }
  return starts;
}

inline std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(vocabulary - 1));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(any(generator()));
  return tokens;
}

/// Relative to the largest `expected` value: bf16 rounds to 8 bits; fp32 rounds to 24 and adds
/// summation error.
inline double tolerance(DType dtype) {
  return dtype == DType::f32 ? 5e-6 : 6e-3;
}

/// Checks that every `actual` value is finite and within `relative` times the largest expected
/// value.
inline void expect_near(const reference::Numbers& actual, const reference::Numbers& expected,
                        double relative, const char* what, double least = 1e-30) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double most = least;
  for (const auto x : expected) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << what << " element " << i << ", seed " << seed;
    ASSERT_NEAR(actual[i], expected[i], relative * most)
        << what << " element " << i << " of " << actual.size() << ", seed " << seed;
  }
}

inline reference::Numbers sum(reference::Numbers a, const reference::Numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Runs `work` with 1 and then 3 threads; `result` must return the same bytes after both. `work`
/// must start from the same state each time.
template <class Work, class Result>
void expect_same_for_any_threads(const Work& work, const Result& result) {
  const auto before = omp_get_max_threads();
  omp_set_num_threads(1);
  work();
  const auto one = result();
  omp_set_num_threads(3);
  work();
  const auto three = result();
  omp_set_num_threads(before);
  EXPECT_TRUE(one == three) << "the result depends on the number of threads, seed " << seed;
}

/// fp32 and bf16 as a test parameter.
class EachDType : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double near() const { return tolerance(GetParam()); }
  device::Stream stream = device::Stream::calling_thread();
};

inline std::string dtype_name(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}

}  // namespace llamesh::test
