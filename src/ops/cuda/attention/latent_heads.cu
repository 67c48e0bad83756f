#include "ops/cuda/kernels.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: reads and writes each tensor once. Forward and backward pass move the same
// elements, in opposite directions.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;

/// Each half of a head's key begins with `turns` dims from k_rope; the others are from kv.
template <class T>
struct Latent {
  Rows<T> kv, k_rope, k, v;
  int heads, half, turns, value_dim;
  std::int64_t tokens;

  /// Returns N, a key's dims that come from kv.
  __device__ __forceinline__ int key_dims() const { return 2 * (half - turns); }
  /// Returns the place in k or v for a head's element i in kv.
  __device__ __forceinline__ T* place(std::int64_t m, int head, int i) const {
    if (i >= key_dims()) return v[m] + head * value_dim + i - key_dims();
    return k[m] + head * 2 * half + i + (i < half - turns ? turns : 2 * turns);
  }
  /// Returns the place in a head's key for k_rope's element i.
  __device__ __forceinline__ T* rope_place(std::int64_t m, int head, int i) const {
    return k[m] + head * 2 * half + i + (i < turns ? 0 : half - turns);
  }
};

/// Calls rope_at(m, i) for every pack (`width` elements) in k_rope, at its element i, and
/// kv_at(m, head, i) for every pack in kv. One token per block and iteration.
template <int width, class T, class RopeAt, class KvAt>
__device__ __forceinline__ void for_each_pack(const Latent<T>& a, const RopeAt& rope_at,
                                              const KvAt& kv_at) {
  const int packs = (a.key_dims() + a.value_dim) / width, rope_packs = 2 * a.turns / width;
  for (std::int64_t m = blockIdx.x; m < a.tokens; m += gridDim.x) {
    for (int i = threadIdx.x; i < rope_packs; i += threads) rope_at(m, i * width);
    for (int i = threadIdx.x; i < a.heads * packs; i += threads)
      kv_at(m, i / packs, i % packs * width);
  }
}

template <int width, class T>
__global__ void __launch_bounds__(threads) spread(Latent<T> a) {
  const int kv_dims = a.key_dims() + a.value_dim;
  for_each_pack<width>(
      a,
      [&](std::int64_t m, int i) {
        const auto x = load<width>(a.k_rope[m] + i);
        for (int head = 0; head < a.heads; ++head) store<width>(a.rope_place(m, head, i), x);
      },
      [&](std::int64_t m, int head, int i) {
        store<width>(a.place(m, head, i), load<width>(a.kv[m] + head * kv_dims + i));
      });
}

/// A thread sums its elements over the heads, in their order.
template <int width, class T>
__global__ void __launch_bounds__(threads) collect(Latent<T> a) {
  const int kv_dims = a.key_dims() + a.value_dim;
  for_each_pack<width>(
      a,
      [&](std::int64_t m, int i) {
        Pack<width> sum = {};
        for (int head = 0; head < a.heads; ++head) {
          const auto x = load<width>(a.rope_place(m, head, i));
#pragma unroll
          for (int j = 0; j < width; ++j) sum.v[j] += x.v[j];
        }
        store<width>(a.k_rope[m] + i, sum);
      },
      [&](std::int64_t m, int head, int i) {
        store<width>(a.kv[m] + head * kv_dims + i, load<width>(a.place(m, head, i)));
      });
}

enum class Pass : bool { forward, backward };

void move_heads(Stream& stream, const LatentHeads& c, Pass pass) {
  const auto rope = c.k_rope.cols();
  expects(c.heads > 0 && c.k.cols() % c.heads == 0 && c.v.cols() % c.heads == 0,
          "latent_heads: {} heads, keys ({}, {}), values ({}, {})", c.heads, c.k.rows(), c.k.cols(),
          c.v.rows(), c.v.cols());
  const auto head_dim = c.k.cols() / c.heads, value_dim = c.v.cols() / c.heads;
  expects(head_dim % 2 == 0 && rope % 2 == 0 && rope <= head_dim &&
              c.kv.cols() == c.heads * (head_dim - rope + value_dim),
          "latent_heads: {} heads of {} with values of {}, kv ({}, {}), k_rope ({}, {})", c.heads,
          head_dim, value_dim, c.kv.rows(), c.kv.cols(), c.k_rope.rows(), rope);
  expects(c.kv.rows() == c.k.rows() && c.k_rope.rows() == c.k.rows() && c.v.rows() == c.k.rows(),
          "latent_heads: {} keys, {} values, {} and {} tokens", c.k.rows(), c.v.rows(), c.kv.rows(),
          c.k_rope.rows());
  if (c.k.numel() == 0) return;
  with_type(c.k.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const auto half = head_dim / 2, turns = rope / 2;
    const bool can = half % wide == 0 && turns % wide == 0 && value_dim % wide == 0 &&
                     aligned(c.kv, c.k_rope, c.k, c.v);
    const auto blocks = c.k.rows() < (1 << 20) ? c.k.rows() : 1 << 20;
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(pass == Pass::forward ? &spread<width, T> : &collect<width, T>, {blocks}, threads, 0,
             stream,
             Latent<T>{rows_of<T>(c.kv), rows_of<T>(c.k_rope), rows_of<T>(c.k), rows_of<T>(c.v),
                       static_cast<int>(c.heads), static_cast<int>(half), static_cast<int>(turns),
                       static_cast<int>(value_dim), c.k.rows()});
    });
  });
}

}  // namespace

void latent_heads(Stream& stream, const LatentHeads& heads) {
  move_heads(stream, heads, Pass::forward);
}

void latent_heads_backward(Stream& stream, const LatentHeads& gradients) {
  move_heads(stream, gradients, Pass::backward);
}

}  // namespace LLAMESH_OPS_CUDA
