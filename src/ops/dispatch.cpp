#include "ops/cpu/kernels.hpp"
#ifdef LLAMESH_HAS_CUDA
#include "ops/cuda/kernels.hpp"
#endif

// Each kernel of ops.hpp goes to the backend of its stream.

namespace llamesh::ops {
namespace {

constexpr const char* cpu_attention = "the CPU's kernels";

template <class Cpu, class Cuda, class... Arguments>
auto on(Stream& stream, Cpu* cpu, Cuda* cuda, const Arguments&... arguments) {
  return stream.on_gpu() ? cuda(stream, arguments...) : cpu(stream, arguments...);
}

}  // namespace

// Without CUDA no stream is on a GPU.
#ifdef LLAMESH_HAS_CUDA
#define BACKENDS(kernel) cpu::kernel, cuda::kernel
#else
#define BACKENDS(kernel) cpu::kernel, cpu::kernel
#endif

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  on(stream, BACKENDS(linear), y, x, w, accumulate);
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  on(stream, BACKENDS(linear_backward_input), dx, dy, w, accumulate);
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  on(stream, BACKENDS(linear_backward_weight), dw, dy, x, accumulate);
}

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table) {
  on(stream, BACKENDS(embedding), out, tokens, table);
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        Accumulate accumulate) {
  on(stream, BACKENDS(embedding_backward), dtable, dout, tokens, accumulate);
}

void rms_norm(Stream& stream, Tensor y, Tensor inverse_rms, Tensor sum, Tensor x, Tensor delta,
              Tensor w, float eps) {
  on(stream, BACKENDS(rms_norm), y, inverse_rms, sum, x, delta, w, eps);
}

void rms_norm_backward(Stream& stream, Tensor dx, Accumulate accumulate_dx, Tensor dw,
                       Accumulate accumulate_dw, Tensor dy, Tensor x, Tensor inverse_rms,
                       Tensor w) {
  on(stream, BACKENDS(rms_norm_backward), dx, accumulate_dx, dw, accumulate_dw, dy, x, inverse_rms,
     w);
}

void rope(Stream& stream, Tensor x, Tensor cos_sin, Tensor document_starts, std::int64_t head_dim,
          Rotation rotation) {
  on(stream, BACKENDS(rope), x, cos_sin, document_starts, head_dim, rotation);
}

void attention(Stream& stream, Tensor out, Tensor log_sum_exp, Tensor q, Tensor k, Tensor v,
               Tensor document_starts, const AttentionShape& shape) {
  on(stream, BACKENDS(attention), out, log_sum_exp, q, k, v, document_starts, shape);
}

void attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor q,
                        Tensor k, Tensor v, Tensor out, Tensor log_sum_exp, Tensor delta,
                        Tensor document_starts, const AttentionShape& shape) {
  on(stream, BACKENDS(attention_backward), dq, dk, dv, dout, q, k, v, out, log_sum_exp, delta,
     document_starts, shape);
}

#ifdef LLAMESH_HAS_CUDA
std::string attention_name(Stream& stream, Tensor out, Tensor q, Tensor k, Tensor v,
                           Tensor document_starts, const AttentionShape& shape) {
  return stream.on_gpu() ? cuda::attention_name(out, q, k, v, document_starts, shape)
                         : cpu_attention;
}
std::string gpu_attention() {
  return cuda::attention_library();
}
#else
std::string attention_name(Stream& /*stream*/, Tensor /*out*/, Tensor /*q*/, Tensor /*k*/,
                           Tensor /*v*/, Tensor /*document_starts*/,
                           const AttentionShape& /*shape*/) {
  return cpu_attention;
}
std::string gpu_attention() {
  return "";
}
#endif

void cached_attention(Stream& stream, Tensor out, Tensor q, Tensor keys, Tensor values,
                      const AttentionShape& shape, std::int64_t past) {
  on(stream, BACKENDS(cached_attention), out, q, keys, values, shape, past);
}

void swiglu(Stream& stream, Tensor out, Tensor gate_up) {
  on(stream, BACKENDS(swiglu), out, gate_up);
}

void swiglu_backward(Stream& stream, Tensor dgate_up, Tensor dout, Tensor gate_up) {
  on(stream, BACKENDS(swiglu_backward), dgate_up, dout, gate_up);
}

void cross_entropy(Stream& stream, Tensor losses, Tensor logits, Tensor targets, float scale,
                   WithGradient gradient) {
  on(stream, BACKENDS(cross_entropy), losses, logits, targets, scale, gradient);
}

void copy(Stream& stream, Tensor y, Tensor x) {
  on(stream, BACKENDS(copy), y, x);
}

void add(Stream& stream, Tensor y, Tensor x) {
  on(stream, BACKENDS(add), y, x);
}

void fill(Stream& stream, Tensor y, float value) {
  on(stream, BACKENDS(fill), y, value);
}

void scale(Stream& stream, Tensor y, float factor) {
  on(stream, BACKENDS(scale), y, factor);
}

double sum_of_squares(Stream& stream, Tensor x) {
  return on(stream, BACKENDS(sum_of_squares), x);
}

void adamw(Stream& stream, Tensor parameter, Tensor exp_avg, Tensor exp_avg_sq, Tensor gradient,
           const AdamwStep& step) {
  on(stream, BACKENDS(adamw), parameter, exp_avg, exp_avg_sq, gradient, step);
}

void sgd(Stream& stream, Tensor parameter, Tensor momentum_buffer, Tensor gradient,
         const SgdStep& step) {
  on(stream, BACKENDS(sgd), parameter, momentum_buffer, gradient, step);
}

#undef BACKENDS

}  // namespace llamesh::ops
