#include "ops/cpu/document_starts.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Rotates one head in place; `sign` is -1 to rotate back.
template <class T>
void rotate(T* head, const float* cosines, const float* sines, std::int64_t half, float sign) {
  for_each_vec(half, [&](std::int64_t i, auto lanes) {
    const auto c = load(cosines + i, lanes);
    const auto s = load(sines + i, lanes) * sign;
    const auto x1 = load(head + i, lanes);
    const auto x2 = load(head + half + i, lanes);
    store(head + i, x1 * c - x2 * s, lanes);
    store(head + half + i, x2 * c + x1 * s, lanes);
  });
}

}  // namespace

void rope(Stream& stream, Tensor x, Tensor cos_sin, Tensor document_starts,
          const RowPositions& positions, Rotation rotation) {
  const auto head_dim = cos_sin.cols();
  expects(head_dim % 2 == 0 && x.cols() % head_dim == 0, "rope: {} columns, heads of {}", x.cols(),
          head_dim);
  expects(positions[positions.tokens - 1] < cos_sin.rows(), "rope: position {}, the table has {}",
          positions[positions.tokens - 1], cos_sin.rows());
  stream.run([=] {
    const DocumentStarts starts(document_starts, x.rows(), positions);
    const auto* start = starts.from(0);
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const auto half = head_dim / 2;
      const auto sign = rotation == Rotation::forward ? 1.0F : -1.0F;
      const Rows<T> tokens(x);
      const Rows<const float> table(cos_sin);
      for_each_block(
          x.rows(), rows_per_block(x.cols()), [&](std::int64_t first, std::int64_t last) {
            for (auto m = first; m < last; ++m) {
              const auto position = positions[m % positions.tokens] - (start ? start[m] : 0);
              const auto* cosines = table[position];
              for (std::int64_t h = 0; h < x.cols(); h += head_dim)
                rotate(tokens[m] + h, cosines, cosines + half, half, sign);
            }
          });
    });
  });
}

}  // namespace llamesh::ops::cpu
