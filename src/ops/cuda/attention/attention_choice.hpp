#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "ops/cuda/kernels.hpp"

namespace LLAMESH_OPS_CUDA {

/// Attention implementation on a GPU. `cudnn` insists on cuDNN: if it is missing the program exits
/// rather than fall back to the built-in kernels. Calls that cuDNN does not support (fp32,
/// documents, part of a sequence's queries) still use those. `mma` is `builtin` without the Hopper
/// kernels.
enum class AttentionChoice { automatic, cudnn, builtin, mma };

enum class AttentionPass { forward, backward };
/// Returns the pass for a call with these gradients; the forward pass has none.
inline AttentionPass pass_of(const AttentionGradients& gradients) {
  return gradients.dq ? AttentionPass::backward : AttentionPass::forward;
}

/// One choice per pass. Forward and backward implementations can be combined freely.
struct AttentionChoices {
  AttentionChoice forward, backward;
  auto operator<=>(const AttentionChoices&) const = default;
};
/// Parses "cudnn", "builtin" or "mma" for both passes, or a pair such as "cudnn/builtin" for
/// forward and backward. Null means automatic; anything else is a user error.
AttentionChoices attention_choices(const char* text);
/// Returns true if cuDNN should be tried for a pass. `by_wgmma`: the built-in kernels for Hopper
/// take it. By default they then compute the backward pass, because cuDNN's deterministic one
/// writes the gradient of all scores to memory there (measured: docs/gpu-results.md).
bool tries_cudnn(AttentionPass pass, AttentionChoice choice, bool by_wgmma);
// See ops/ops.hpp.
std::string used_attention();
std::int64_t max_attention_scratch();

/// Returns the choice in environment variable LLAMESH_ATTENTION, read once.
AttentionChoice attention_choice(AttentionPass pass);

}  // namespace LLAMESH_OPS_CUDA
