#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "emulated_mma.hpp"

/// Emulated counterpart to ops/cuda/wgmma.cuh. Each warp computes 16 of the 64 rows. A descriptor
/// is decoded as in the PTX manual ("Matrix Descriptor" and "Strides" for wgmma): bits 0-13 start,
/// 16-29 leading byte offset, 32-45 stride byte offset, all in units of 16 bytes; 49-51 base
/// offset, 62-63 swizzle.
namespace llamesh::ops::cuda {
inline namespace emulated {

using MatrixDescriptor = std::uint64_t;

inline MatrixDescriptor matrix_descriptor(SharedAddress start, int panel_bytes) {
  expects(start % 16 == 0 && panel_bytes % 16 == 0, "a factor at {}, panels {} bytes apart", start,
          panel_bytes);
  return std::uint64_t{1} << 62U | std::uint64_t{1024 / 16} << 32U |
         static_cast<std::uint64_t>(panel_bytes / 16) << 16U | start / 16;
}
inline MatrixDescriptor advance(MatrixDescriptor from, int bytes) {
  return from + static_cast<std::uint64_t>(bytes / 16);
}

/// A factor with 16 elements per row, or per column if its `lines` (rows or columns) are
/// contiguous: elements[line][i].
class Factor {
 public:
  Factor(MatrixDescriptor descriptor, int first_line, int lines, bool lines_together)
      : descriptor_(descriptor),
        first_line_(first_line),
        lines_(lines),
        lines_together_(lines_together) {
    expects(descriptor >> 62U == 1 && (descriptor >> 49U & 7U) == 0,
            "only swizzling by 128 bytes is emulated");
  }
  std::vector<std::array<std::uint16_t, 16>> numbers() const {
    std::vector<std::array<std::uint16_t, 16>> to(static_cast<std::size_t>(lines_));
    // Eight elements are contiguous: in one line, or the same element in eight lines.
    for (int line = 0; line < lines_; line += lines_together_ ? 8 : 1)
      for (int i = 0; i < 16; i += lines_together_ ? 1 : 8) {
        const auto at = address(first_line_ + line, i);
        Block::current().check_shown(at, 16);
        std::array<std::uint16_t, 8> eight;
        std::memcpy(eight.data(), Block::current().shared() + at, 16);
        for (int j = 0; j < 8; ++j)
          to[static_cast<std::size_t>(lines_together_ ? line + j : line)]
            [static_cast<std::size_t>(lines_together_ ? i : i + j)] =
                eight[static_cast<std::size_t>(j)];
      }
    return to;
  }

 private:
  std::int64_t field(unsigned shift) const {
    return static_cast<std::int64_t>(descriptor_ >> shift & 0x3FFFU) * 16;
  }
  std::int64_t address(int line, int i) const {
    const auto start = field(0), leading = field(16), stride = field(32);
    const auto at = lines_together_
                        ? start + line % 64 * 2 + line / 64 * leading + i % 8 * 128 + i / 8 * stride
                        : start + line % 8 * 128 + line / 8 * stride + i * 2;
    return at ^ (at >> 7 & 7) << 4;
  }

  MatrixDescriptor descriptor_;
  int first_line_, lines_;
  bool lines_together_;
};

/// One lane's part in a product.
struct ProductArgument {
  float* sums;                 // (n, 4)
  const std::uint32_t* words;  // left factor in registers, or null
  MatrixDescriptor a, b;
  int columns;
  bool add, b_columns_together;
};

/// A product issued by one warp. Until it ends its sums hold a NaN, which tells a later product
/// that adds to them that it follows this one.
class Product {
 public:
  explicit Product(void* const* lanes) {
    for (int lane = 0; lane < emulator::warp_size; ++lane) {
      lanes_.push_back(*static_cast<const ProductArgument*>(lanes[lane]));
      const auto& mine = lanes_.back();
      expects(mine.a == lanes_[0].a && mine.b == lanes_[0].b, "lanes have different factors");
      const auto n = static_cast<std::size_t>(mine.columns / 2);
      auto& before = before_.emplace_back(n, 0.0F);
      follows_ = mine.add && std::bit_cast<std::uint32_t>(mine.sums[0]) == pending;
      if (mine.add && !follows_) before.assign(mine.sums, mine.sums + n);
      std::fill_n(mine.sums, n, std::bit_cast<float>(pending));
    }
    left_ = left();
    right_ = right();
  }
  void finish() const {
    expects(left() == left_ && right() == right_,
            "a factor changed before its product was waited for");
    const auto a = widened(left_), b = widened(right_);
    for (int lane = 0; lane < emulator::warp_size; ++lane) {
      const auto at = static_cast<std::size_t>(lane);
      for (int i = 0; i < lanes_[at].columns / 2; ++i) {
        const auto& row = a[static_cast<std::size_t>(lane / 4 + i / 2 % 2 * 8)];
        const auto& col = b[static_cast<std::size_t>(i / 4 * 8 + lane % 4 * 2 + i % 2)];
        float sum = follows_ ? lanes_[at].sums[i] : before_[at][static_cast<std::size_t>(i)];
        for (std::size_t k = 0; k < 16; ++k) sum += row[k] * col[k];
        lanes_[at].sums[i] = sum;
      }
    }
  }

 private:
  static constexpr std::uint32_t pending = 0x7FC0FFEEU;  // a NaN
  using Numbers = std::vector<std::array<std::uint16_t, 16>>;
  Numbers left() const {
    const int warp = Block::current().thread() / emulator::warp_size;
    if (!lanes_[0].words) return Factor(lanes_[0].a, warp % 4 * 16, 16, false).numbers();
    Numbers to(16);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      for (std::size_t i = 0; i < 8; ++i)
        to[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] =
            static_cast<std::uint16_t>(lanes_[lane].words[i / 2] >> i % 2 * 16);
    return to;
  }
  static std::vector<std::array<float, 16>> widened(const Numbers& numbers) {
    std::vector<std::array<float, 16>> to(numbers.size());
    for (std::size_t line = 0; line < to.size(); ++line)
      for (std::size_t k = 0; k < 16; ++k) to[line][k] = half_of(numbers[line][k], 0);
    return to;
  }
  Numbers right() const {
    return Factor(lanes_[0].b, 0, lanes_[0].columns, lanes_[0].b_columns_together).numbers();
  }

  std::vector<ProductArgument> lanes_;
  std::vector<std::vector<float>> before_;
  bool follows_ = false;
  Numbers left_, right_;
};

inline void start_product(ProductArgument mine) {
  expects(Block::current().threads() % 128 == 0, "{} threads are no warpgroups",
          Block::current().threads());
  Block::current().together(Together::products, &mine, [](void* const* lanes) {
    Block::current().start_product(
        [product = std::make_shared<Product>(lanes)] { product->finish(); });
  });
}

inline void fence_proxy_async() {
  Block::current().fence_proxy_async();
}
inline void wgmma_fence() {}
template <int n, int k>
void wgmma_fence(float (&/*sums*/)[n][4], std::uint32_t (&/*left*/)[k][4]) {}
inline void wgmma_commit_group() {
  Block::current().together(Together::products, nullptr,
                            [](void* const*) { Block::current().wgmma_commit_group(); });
}
template <int open, int n>
void wgmma_wait_group(float (&/*sums*/)[n][4]) {
  Block::current().together(Together::products, nullptr,
                            [](void* const*) { Block::current().wgmma_wait_group(open); });
}
inline void work_before_wait(float /*sum*/) {}
template <int k>
void work_before_wait(const std::uint32_t (&/*left*/)[k][4]) {}

template <int n>
void wgmma_ss(float (&c)[n][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  start_product({&c[0][0], nullptr, a, b, 8 * n, add, false});
}
template <int n>
void wgmma_rs(float (&c)[n][4], const std::uint32_t (&a)[4], MatrixDescriptor b) {
  start_product({&c[0][0], a, 0, b, 8 * n, true, true});
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
