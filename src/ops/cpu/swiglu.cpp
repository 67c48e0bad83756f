#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
void swiglu(Stream& stream, Tensor out, Tensor gate_up) {
  const auto cols = out.cols();
  expects(gate_up.cols() == 2 * cols && gate_up.rows() == out.rows(), "swiglu shapes");
  stream.run([=] {
    with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> to(out);
      const Rows<const T> from(gate_up);
      for_each_block(out.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
        for (auto m = first; m < last; ++m)
          for_each_vec(cols, [&](std::int64_t i, auto lanes) {
            const auto gate = load(from[m] + i, lanes);
            store(to[m] + i, gate * sigmoid(gate) * load(from[m] + cols + i, lanes), lanes);
          });
      });
    });
  });
}

void swiglu_backward(Stream& stream, Tensor dgate_up, Tensor out, Tensor dout, Tensor gate_up) {
  const auto cols = dout.cols();
  expects(gate_up.cols() == 2 * cols && gate_up.rows() == dout.rows() &&
              same_matrix_shape(dgate_up, gate_up) && (!out || same_matrix_shape(out, dout)),
          "swiglu_backward shapes");
  stream.run([=] {
    with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> to(dgate_up), again(out);
      const Rows<const T> slope(dout), from(gate_up);
      for_each_block(dout.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
        for (auto m = first; m < last; ++m)
          for_each_vec(cols, [&](std::int64_t i, auto lanes) {
            const auto gate = load(from[m] + i, lanes);
            const auto up = load(from[m] + cols + i, lanes);
            const auto d = load(slope[m] + i, lanes);
            const auto s = sigmoid(gate);
            if (out) store(again[m] + i, gate * s * up, lanes);
            store(to[m] + i, d * up * s * (1.0F + gate * (1.0F - s)), lanes);
            store(to[m] + cols + i, d * gate * s, lanes);
          });
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
