#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/async_copy.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "model/layers/activations.hpp"
#include "model/layers/block.hpp"
#include "model/layers/weights.hpp"

namespace llamesh::model {

/// A model that continues one text. It caches the keys and values, so that a new token costs a pass
/// over one token.
class Decoder {
 public:
  static constexpr std::int64_t largest_chunk = 512;  ///< prompt tokens per pass

  /// `config` is resolved; at most `positions` tokens can be fed. `table` has the shapes that this
  /// rank holds. `table`, `weights` and `tensor` are borrowed. Activations and the cache have
  /// `precision.dtype`, the weights' dtype.
  Decoder(const ModelConfig& config, const ParameterTable& table, Weights& weights,
          std::int64_t positions, const Precision& precision, TensorParallel& tensor = one_rank());
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Appends `tokens` (at least one) to those fed before and returns the logits (V) for the next
  /// token. Valid until the next call.
  std::span<const float> feed(std::span<const std::int32_t> tokens);

  /// Forgets what was fed behind the first `position` tokens.
  void rewind(std::int64_t position);

  /// Returns the number of tokens fed so far.
  std::int64_t position() const { return cache_.past; }
  std::int64_t positions() const { return positions_; }

 private:
  PassShape shape(std::int64_t tokens) const;
  void allocate_cache();
  void pass(std::span<const std::int32_t> tokens);

  TensorParallel& tensor_;
  const ModelConfig config_;
  const ParameterTable& table_;
  Weights& weights_;
  std::int64_t positions_;
  std::int64_t chunk_;  ///< maximum tokens per pass
  Precision precision_;
  device::Stream& stream_ = device::compute_stream();
  const ModelTraits traits_;
  Activations activations_;
  KvCache cache_;
  Tensor last_;        ///< (1, D) normed hidden state for the last token
  Tensor logits_;      ///< (1, this rank's V) fp32
  Tensor all_logits_;  ///< (1, V) fp32, V with padding
  device::Buffer cache_buffer_, outputs_;
  RopeTables rope_;
  device::Staging ids_;
  std::vector<float> logits_on_host_;
};

}  // namespace llamesh::model
