#include "ops/cuda/attention/attention_choice.hpp"
#include "ops/cuda/attention/cudnn_attention.hpp"

// Replaces cudnn_attention.cpp in a build without cuDNN, and under the emulator.

namespace LLAMESH_OPS_CUDA {

bool can_use_cudnn(const AttentionCall& /*call*/, const AttentionGradients& gradients) {
  validate(attention_choice(pass_of(gradients)) != AttentionChoice::cudnn,
           "LLAMESH_ATTENTION asks for cuDNN, but llamesh was built without cuDNN; unset it, or "
           "build with "
           "cuDNN and cudnn_frontend (docs/gpu.md)");
  return false;
}

void cudnn_attention(Stream& /*stream*/, const AttentionCall& /*call*/,
                     const AttentionGradients& /*gradients*/) {
  expects(false, "attention by cuDNN in a build without it");
}

std::int64_t max_attention_scratch() {
  return 0;
}

std::string attention_library() {
  return "built-in kernels (built without cuDNN)";
}

}  // namespace LLAMESH_OPS_CUDA
