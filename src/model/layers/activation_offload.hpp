#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "device/async_copy.hpp"
#include "device/buffer.hpp"

namespace llamesh::model {

/// Host-memory offload for what layers keep between forward and backward pass. They take turns in
/// two device slots. A layer's data is copied out after its forward pass, while the next layer
/// computes, and copied back while the layer after it runs its backward pass. In a pipeline stage,
/// passes of other micro-batches come between, and the last layer of a chunk has none after it: it
/// waits for its data.
class ActivationOffload {
 public:
  static constexpr std::size_t places = 2;
  /// Returns true if offloading saves memory for this many layers, all micro-batches in flight
  /// counted.
  static bool helps(std::size_t layers) { return layers > places; }

  /// `kept`: device location per layer, in the order of the forward passes; layer i has place i %
  /// places. The last `staying` ones stay in their places and are not copied, since nothing comes
  /// between their passes.
  explicit ActivationOffload(const std::vector<Tensor>& kept, std::size_t staying = places);

  /// Call each one before or after the layer's work is queued on `compute`. Layers behind the last
  /// one that is kept here are ignored.
  void before_forward(device::Stream& compute, std::size_t layer);
  void after_forward(device::Stream& compute, std::size_t layer);
  /// `first`: the first layer that this backward pass comes to, from the last one.
  void before_backward(device::Stream& compute, std::size_t layer, std::size_t first = 0);

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
  void fetch(device::Stream& compute, std::size_t layer);

  std::vector<Layer> layers_;
  std::array<device::Event, places> stored_;  ///< by place: what was copied out of it last
  device::Buffer host_;
  device::CopyStreams copies_;
};

}  // namespace llamesh::model
