#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "device/async_copy.hpp"
#include "device/buffer.hpp"

namespace llamesh::model {

/// Host-memory offload for what layers keep between forward and backward pass. All layers except
/// the last take turns in two device slots. A layer's data is copied out after its forward pass,
/// while the next layer computes, and copied back while the layer after it runs its backward pass.
/// The last two of these layers stay in their slots and are not copied.
class ActivationOffload {
 public:
  static constexpr std::size_t places = 2;
  /// Returns true if offloading saves memory for this many layers.
  static bool helps(std::size_t layers) { return layers > places + 1; }

  /// `kept`: device location per layer, without the last layer.
  explicit ActivationOffload(const std::vector<Tensor>& kept);

  /// Call each one before or after the layer's work is queued on `compute`.
  void before_forward(device::Stream& compute, std::size_t layer);
  void after_forward(device::Stream& compute, std::size_t layer);
  void before_backward(device::Stream& compute, std::size_t layer);

  /// Returns the seconds for which copies have blocked the compute stream so far.
  double seconds_exposed() const { return copies_.seconds_blocked(); }

 private:
  struct Layer {
    Tensor kept;
    std::byte* on_host = nullptr;  ///< null if it is not copied
    bool is_stored = false;        ///< until it is copied back; frozen lower layers never are
    device::Event stored;          ///< copied out
    device::Event here;            ///< copied back
  };

  std::vector<Layer> layers_;
  device::Buffer host_;
  device::CopyStreams copies_;
};

}  // namespace llamesh::model
