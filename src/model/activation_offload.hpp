#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "device/async_copy.hpp"
#include "device/buffer.hpp"

namespace llamesh::model {

/// Keeps in host memory what layers keep from their forward to their backward pass. All layers but
/// the last take turns in two places on the device. A copy leaves after a layer's forward pass,
/// while the next one computes, and returns while the layer after it computes its backward pass.
/// What the last two of them have is in its place until then, and is not copied.
class ActivationOffload {
 public:
  static constexpr std::size_t places = 2;
  /// As many layers as these are worth it.
  static bool helps(std::size_t layers) { return layers > places + 1; }

  /// `kept`: by layer, without the last one, where it is on the device.
  explicit ActivationOffload(const std::vector<Tensor>& kept);

  /// Each comes before or after the work of the layer is put into `compute`.
  void before_forward(device::Stream& compute, std::size_t layer);
  void after_forward(device::Stream& compute, std::size_t layer);
  void before_backward(device::Stream& compute, std::size_t layer);

  /// On CPUs, seconds so far in which the compute stream was blocked by the copies.
  double seconds_exposed() const { return copies_.seconds_blocked(); }

 private:
  struct Layer {
    Tensor kept;
    std::byte* on_host = nullptr;  ///< null: it is not copied
    device::Event stored;          ///< it has left
    device::Event here;            ///< it is back
  };

  std::vector<Layer> layers_;
  device::Buffer host_;
  device::CopyStreams copies_;
};

}  // namespace llamesh::model
