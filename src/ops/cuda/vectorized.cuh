#pragma once

#include <cstdint>
#include <type_traits>

#include "core/tensor.hpp"
#include "ops/cuda/device_code.cuh"

/// Vectorized memory access, and the host-side choice of vector width.
namespace LLAMESH_OPS_CUDA {

/// Elements of type T in 16 bytes.
template <class T>
inline constexpr int per_16_bytes = 16 / static_cast<int>(sizeof(T));

/// Adjacent elements, in fp32.
template <int width>
struct Pack {
  float v[width];
};

/// Converts 16 bytes to fp32 elements.
template <class T>
__device__ __forceinline__ Pack<per_16_bytes<T>> unpack(Words4 words) {
  Pack<per_16_bytes<T>> to;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      to.v[i] = __uint_as_float(words.w[i]);
    } else {
      to.v[2 * i] = __uint_as_float(words.w[i] << 16U);
      to.v[2 * i + 1] = __uint_as_float(words.w[i] & 0xFFFF0000U);
    }
  }
  return to;
}

/// Rounds elements to T and packs them into 16 bytes.
template <class T>
__device__ __forceinline__ Words4 pack(const Pack<per_16_bytes<T>>& from) {
  Words4 words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>)
      words.w[i] = __float_as_uint(from.v[i]);
    else
      words.w[i] = pack_bf16(from.v[2 * i], from.v[2 * i + 1]);
  }
  return words;
}

template <class T>
__device__ __forceinline__ float load_one(const T* from) {
  if constexpr (std::is_same_v<T, float>)
    return *from;
  else
    return __uint_as_float(static_cast<std::uint32_t>(from->bits) << 16U);
}
template <class T>
__device__ __forceinline__ void store_one(T* to, float x) {
  if constexpr (std::is_same_v<T, float>)
    *to = x;
  else
    to->bits = static_cast<std::uint16_t>(pack_bf16(x, 0.0F));
}

/// Loads `width` elements: 1, or 8 (bf16), 16 or 32 bytes.
template <int width, class T>
__device__ __forceinline__ Pack<width> load(const T* from) {
  Pack<width> to;
  if constexpr (width == 1) {
    to.v[0] = load_one(from);
  } else if constexpr (width * sizeof(T) == 8) {
    static_assert(std::is_same_v<T, bf16>);
    const auto words = load_words<Words2>(from);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.v[2 * i] = __uint_as_float(words.w[i] << 16U);
      to.v[2 * i + 1] = __uint_as_float(words.w[i] & 0xFFFF0000U);
    }
  } else {
    constexpr int part = per_16_bytes<T>;
    static_assert(width % part == 0);
#pragma unroll
    for (int i = 0; i < width / part; ++i) {
      const auto some = unpack<T>(load_words<Words4>(from + i * part));
#pragma unroll
      for (int j = 0; j < part; ++j) to.v[i * part + j] = some.v[j];
    }
  }
  return to;
}

/// Stores `width` elements, rounded to T: 1, or 8, 16 or 32 bytes.
template <int width, class T>
__device__ __forceinline__ void store(T* to, const Pack<width>& from) {
  if constexpr (width == 1) {
    store_one(to, from.v[0]);
  } else if constexpr (width * sizeof(T) == 8) {
    static_assert(std::is_same_v<T, bf16>);
    store_words(to, Words2{{pack_bf16(from.v[0], from.v[1]), pack_bf16(from.v[2], from.v[3])}});
  } else {
    constexpr int part = per_16_bytes<T>;
    static_assert(width % part == 0);
#pragma unroll
    for (int i = 0; i < width / part; ++i) {
      Pack<part> some;
#pragma unroll
      for (int j = 0; j < part; ++j) some.v[j] = from.v[i * part + j];
      store_words(to + i * part, pack<T>(some));
    }
  }
}

/// Returns exp(x) as precisely as type T needs: bf16 uses the fast version.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return __expf(x);
}

/// Rows of a matrix view on the device: rows[m] points to the first element in row m.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ __forceinline__ T* operator[](std::int64_t row) const { return data + row * stride; }
};

template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  return {tensor ? tensor.as<std::remove_const_t<T>>() : nullptr, tensor.row_stride()};
}

/// Returns true if every row in every tensor is 16-byte aligned (empty tensors are).
template <class... Tensors>
bool aligned(const Tensors&... tensors) {
  const auto good = [](const Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0 &&
           (t.rows() <= 1 || t.row_stride() * size_of(t.dtype()) % 16 == 0);
  };
  return (good(tensors) && ...);
}

/// Calls body(std::type_identity<T>) with the C++ type for a floating-point dtype.
template <class Body>
void with_type(DType dtype, const Body& body) {
  expects(dtype == DType::f32 || dtype == DType::bf16, "this kernel takes fp32 or bf16, not {}",
          name_of(dtype));
  if (dtype == DType::f32)
    body(std::type_identity<float>{});
  else
    body(std::type_identity<bf16>{});
}

/// Calls body(std::integral_constant<int, width>) with width `wide`, or 1 if not `can`.
template <int wide, class Body>
void with_width(bool can, const Body& body) {
  if (can)
    body(std::integral_constant<int, wide>{});
  else
    body(std::integral_constant<int, 1>{});
}

inline bool same_matrix_shape(const Tensor& a, const Tensor& b) {
  return a.rows() == b.rows() && a.cols() == b.cols();
}

constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

/// Returns the blocks for a grid-stride loop over `count` items: enough for all, but at most what
/// fills every multiprocessor.
inline std::int64_t blocks_for(std::int64_t count, std::int64_t threads) {
  const auto most = multiprocessors() * (2048 / threads);
  const auto wanted = divide_up(count, threads);
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

}  // namespace LLAMESH_OPS_CUDA
