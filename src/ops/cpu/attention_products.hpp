#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/attention_matmul.hpp"
#include "ops/cpu/attention_matmul_bf16.hpp"
#include "ops/cpu/attention_softmax.hpp"
#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/bf16_attention.hpp"
#include "ops/cpu/scratch.hpp"

namespace llamesh::ops::cpu {

/// The products of an attention task's tiles, in fp32 or from factors that are rounded to bf16. The
/// sums are fp32 in any case. In fp32, queries carry the factor from products with keys to scores,
/// log2(e) / sqrt(E); rounded ones do not, so that q, k and v are used as they are.
class Products {
 public:
  /// Returns the scratch elements for heads of `widest` elements.
  static std::int64_t numel(std::int64_t widest) { return 3 * room(widest) + Bf16Attention::sums; }
  Products(Bf16Attention::By by, const AttentionShape& s, Pieces& pieces)
      : by_(by),
        scale_(log2_e / s.score_divisor),
        left_(pieces.take(room(PaddedHead(s).widest()))),
        right_(pieces.take(room(PaddedHead(s).widest()))),
        turned_(pieces.take(room(PaddedHead(s).widest()))),
        sums_(pieces.take(Bf16Attention::sums)) {}

  /// Returns the factor with which queries are loaded.
  float of_queries() const { return rounds() ? 1.0F : scale_; }
  /// Returns the factor from a sum over queries as they are loaded to the keys' gradient.
  static float of_dkeys(Bf16Attention::By by, const AttentionShape& s) {
    return by == Bf16Attention::By::none ? ln_2 : 1.0F / s.score_divisor;
  }

  /// scores (keys, queries) = keys (keys, E') queries (E', queries), in base 2.
  template <UpperTriangular upper>
  void scores(float* c, std::int64_t c_stride, Plain a, const float* b, std::int64_t b_stride,
              std::int64_t m, std::int64_t n, std::int64_t k) const {
    if (rounds())
      multiply<upper>(c, c_stride, a, b, b_stride, m, n, k, Scale{.factor = scale_});
    else
      multiply<upper>(c, c_stride, a, b, b_stride, m, n, k, Overwrite{});
  }

  /// c (m, n) = start + a (m, k) b (k, n), as multiply().
  template <UpperTriangular upper, class Left, class Start>
  void multiply(float* c, std::int64_t c_stride, Left a, const float* b, std::int64_t b_stride,
                std::int64_t m, std::int64_t n, std::int64_t k, Start start) const {
    if (!rounds()) return cpu::multiply<upper>(c, c_stride, a, b, b_stride, m, n, k, start);
#ifdef LLAMESH_BF16_ATTENTION
    if constexpr (std::is_same_v<Left, Transposed>)
      round_transposed(left_, turned_, a, m, k);
    else
      round_rows<upper>(left_, a, m, k);
    round_pairs<upper>(right_, b, b_stride, k, n);
    if (by_ == Bf16Attention::By::tiles)
      multiply_tiles<upper>(c, c_stride, left_, right_, sums_, m, n, k, start);
    else
      multiply_pairs<upper>(c, c_stride, left_, right_, m, n, k, start);
#endif
  }

 private:
  /// Floats that hold a factor in bf16: 64 rows or columns, of a head or of scores.
  static std::int64_t room(std::int64_t widest) {
    return tile * round_up(std::max(widest, tile), 32) / 2;
  }

  bool rounds() const {
    return by_ != Bf16Attention::By::none;
  }

  Bf16Attention::By by_;
  float scale_;
  float *left_, *right_, *turned_, *sums_;
};

}  // namespace llamesh::ops::cpu
