#pragma once

#include <cstdint>

namespace llamesh::model {

/// What of a layer's forward pass is computed again in the backward pass instead of being kept.
enum class ActivationCheckpointing : std::uint8_t {
  none,       ///< nothing: fastest, most memory
  selective,  ///< norms and SwiGLU, which cost no GEMM
  full,       ///< everything but the layer's input
};

/// `memory:` of the inputs.
struct MemoryOptions {
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  /// Tokens whose logits exist at a time; 0: what the device makes of it (Activations).
  std::int64_t loss_chunk = 0;
  /// As many of the first layers are `full`, whatever activation_checkpointing says of the others.
  std::int64_t full_checkpointing_layers = 0;
  /// What layers keep for the backward pass is in host memory until then.
  bool activation_offload = false;
  /// Bytes of a rank's device that a step may take; 0: what the device has.
  std::int64_t device_limit = 0;
};

}  // namespace llamesh::model
