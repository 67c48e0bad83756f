#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.hpp"
#include "device/staging.hpp"
#include "device/stream.hpp"
#include "model/weights.hpp"

namespace llamesh::model {

/// A Llama that continues one text: it keeps the keys and values of the tokens that it has seen, so
/// that a new token costs one pass of one token.
class Decoder {
 public:
  /// `config` is resolved; up to `positions` tokens can be fed. `table` and `weights` are borrowed;
  /// activations and the cache are of `dtype`, that of the weights.
  Decoder(const LlamaConfig& config, const ParameterTable& table, Weights& weights,
          std::int64_t positions, DType dtype);

  /// The logits (V) of what follows after `tokens` (at least one), which follow on those fed
  /// before. Valid until the next call.
  std::span<const float> feed(std::span<const std::int32_t> tokens);

  /// Tokens fed so far.
  std::int64_t position() const { return position_; }
  std::int64_t positions() const { return positions_; }

 private:
  /// Intermediates of up to chunk_ tokens, M at hand. See BlockActivations.
  struct Space {
    Tensor residual, delta, normed, rms, qkv, attention, log_sum_exp, gate_up, swiglu;
  };
  Space space_for(std::int64_t tokens) const;
  void pass(std::span<const std::int32_t> tokens);
  void attend(const LayerIds& layer, std::size_t index, const Space& s);
  void norm(const Leaf& leaf, const Space& s, bool with_delta);

  const LlamaConfig config_;
  const ParameterTable& table_;
  Weights& weights_;
  std::int64_t positions_;
  std::int64_t chunk_;
  DType dtype_;
  std::int64_t position_ = 0;
  device::Stream& stream_ = device::compute_stream();
  std::vector<Tensor> keys_;    ///< by layer: (positions, K E)
  std::vector<Tensor> values_;  ///< by layer
  Tensor logits_;               ///< (1, V) fp32
  Tensor last_;                 ///< (1, D) the normed hidden state of the last token
  device::Buffer cache_, space_, outputs_, rope_;
  device::Staging ids_;
  std::vector<float> logits_on_host_;
};

}  // namespace llamesh::model
