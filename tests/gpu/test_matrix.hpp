#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device_memory.hpp"
#include "ops/cuda/kernels.hpp"

namespace llamesh::test {

/// Seed for every test in a file; printed with each failure.
inline constexpr unsigned seed = 20241121;

inline std::mt19937& generator() {
  static std::mt19937 random(seed);
  return random;
}

/// A matrix's position: elements between its rows, and before it.
struct Place {
  std::int64_t gap = 0;
  std::int64_t offset = 0;
};

/// A random matrix on both host and device. The memory around its rows contains a sentinel that no
/// kernel may touch.
class TestMatrix {
 public:
  TestMatrix(DType dtype, std::int64_t rows, std::int64_t cols, Place place = {},
             double spread = 1.0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + place.gap),
        offset_(place.offset),
        bytes_(static_cast<std::size_t>((offset_ + std::max<std::int64_t>(rows * stride_, 1)) *
                                        size_of(dtype)),
               std::byte{0x7E}),
        device_(bytes_.size()) {
    std::normal_distribution<double> normal(0.0, spread);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) write(r, c, normal(generator()));
    upload();
  }

  Tensor host() { return at(bytes_.data()); }
  Tensor device() { return at(static_cast<std::byte*>(device_.data())); }

  /// Sets this element on both.
  void set(std::int64_t r, std::int64_t c, double value) {
    write(r, c, value);
    upload();
  }
  double get(std::int64_t r, std::int64_t c) const { return read(bytes_, r, c); }
  /// Returns an element of downloaded() bytes.
  double read(const std::vector<std::byte>& bytes, std::int64_t r, std::int64_t c) const {
    float number = 0;
    bf16 rounded;
    const auto* from = bytes.data() + place(r, c);
    if (dtype_ == DType::f32) {
      std::memcpy(&number, from, 4);
      return static_cast<double>(number);
    }
    std::memcpy(&rounded, from, 2);
    return static_cast<double>(static_cast<float>(rounded));
  }
  /// Returns all bytes that the device holds now.
  std::vector<std::byte> downloaded() {
    std::vector<std::byte> bytes(bytes_.size());
    device_.download(device_stream(), bytes);
    return bytes;
  }

  /// Checks that every device value is finite and within `relative` times the host's largest value
  /// (or `least`), and that the memory around it is unchanged.
  void expect_equal(double relative, const char* what, double least = 1e-30) {
    const auto actual = downloaded();
    double most = least;
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) most = std::max(most, std::abs(get(r, c)));
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) {
        const auto x = read(actual, r, c);
        ASSERT_TRUE(std::isfinite(x)) << what << " (" << r << ", " << c << "), seed " << seed;
        ASSERT_NEAR(x, get(r, c), relative * most) << what << " (" << r << ", " << c << ") of ("
                                                   << rows_ << ", " << cols_ << "), seed " << seed;
      }
    expect_surroundings_untouched(actual, what);
  }

 private:
  Tensor at(std::byte* data) const {
    return Tensor(data + offset_ * size_of(dtype_), dtype_, {rows_, stride_}).slice_cols(0, cols_);
  }
  std::size_t place(std::int64_t r, std::int64_t c) const {
    return static_cast<std::size_t>((offset_ + r * stride_ + c) * size_of(dtype_));
  }
  void write(std::int64_t r, std::int64_t c, double value) {
    const auto number = static_cast<float>(value);
    const bf16 rounded(number);
    auto* to = bytes_.data() + place(r, c);
    dtype_ == DType::f32 ? std::memcpy(to, &number, 4) : std::memcpy(to, &rounded, 2);
  }
  void expect_surroundings_untouched(std::vector<std::byte> bytes, const char* what) const {
    for (std::int64_t r = 0; r < rows_; ++r)
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(place(r, 0)), cols_ * size_of(dtype_),
                  std::byte{0x7E});
    EXPECT_TRUE(std::ranges::all_of(bytes, [](auto b) { return b == std::byte{0x7E}; }))
        << what << ": wrote beside its rows, seed " << seed;
  }
  void upload() { device_.upload(device_stream(), bytes_); }

  DType dtype_;
  std::int64_t rows_, cols_, stride_, offset_;
  std::vector<std::byte> bytes_;
  DeviceMemory device_;
};

/// int32 elements on both host and device.
class TestIntegers {
 public:
  explicit TestIntegers(std::vector<std::int32_t> numbers)
      : numbers_(std::move(numbers)), device_(std::max<std::size_t>(numbers_.size(), 1) * 4) {
    std::vector<std::byte> bytes(numbers_.size() * 4);
    if (!bytes.empty()) std::memcpy(bytes.data(), numbers_.data(), bytes.size());
    device_.upload(device_stream(), bytes);
  }
  const std::vector<std::int32_t>& numbers() const { return numbers_; }
  /// Returns an empty tensor if there are no elements.
  Tensor host() { return tensor(numbers_.data()); }
  Tensor device() { return tensor(device_.data()); }
  /// Returns what the device has.
  std::vector<std::int32_t> downloaded() {
    std::vector<std::byte> bytes(numbers_.size() * 4);
    device_.download(device_stream(), bytes);
    std::vector<std::int32_t> numbers(numbers_.size());
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * 4);
    return numbers;
  }

 private:
  Tensor tensor(void* data) const {
    return numbers_.empty() ? Tensor() : Tensor(data, DType::i32, {std::ssize(numbers_)});
  }
  std::vector<std::int32_t> numbers_;
  DeviceMemory device_;
};

inline std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(vocabulary - 1));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(any(generator()));
  return tokens;
}

/// Relative to the largest value: bf16 rounds to 8 bits, and both sides may round to neighbors;
/// fp32 sums differ in order.
inline double tolerance(DType dtype) {
  return dtype == DType::f32 ? 4e-6 : 8e-3;
}

/// fp32 and bf16 as a test parameter.
class EachDType : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double near() const { return tolerance(GetParam()); }
};

inline std::string dtype_name(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}

}  // namespace llamesh::test
