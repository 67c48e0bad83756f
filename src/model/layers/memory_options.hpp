#pragma once

#include <cstdint>

#include "core/enum_names.hpp"

namespace llamesh::model {

/// Parts of a layer's forward pass that are recomputed in the backward pass rather than kept.
enum class ActivationCheckpointing : std::uint8_t {
  none,       ///< nothing: fastest, most memory
  selective,  ///< norms and SwiGLU, which cost no GEMM
  full,       ///< everything but the layer's input
};
inline EnumNames<ActivationCheckpointing> enum_names(ActivationCheckpointing) {
  using enum ActivationCheckpointing;
  return {{{"none", none}, {"selective", selective}, {"full", full}}};
}

/// `memory:` section in the input file.
struct MemoryOptions {
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  /// Tokens per chunk of logits; 0: the device's default (see Activations).
  std::int64_t loss_chunk = 0;
  /// Number of leading layers that use `full` checkpointing, whatever activation_checkpointing
  /// says.
  std::int64_t full_checkpointing_layers = 0;
  /// If true, what layers keep for the backward pass is offloaded to host memory.
  bool activation_offload = false;
  /// Limit in bytes for a step on one rank's device; 0: the device's memory.
  std::int64_t device_limit = 0;
};

}  // namespace llamesh::model
