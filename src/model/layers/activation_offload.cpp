#include "model/layers/activation_offload.hpp"

#include <utility>

namespace llamesh::model {

ActivationOffload::ActivationOffload(const std::vector<Tensor>& kept, std::size_t staying) {
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  const auto copied = kept.size() - staying;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < copied; ++i) bytes += kept[i].bytes();
  host_ = device::Buffer::in(device::MemoryKind::host, bytes);
  std::byte* at = host_.data();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    layers_.push_back({kept[i], i < copied ? at : nullptr, false, {}, {}});
    at += kept[i].bytes();
  }
}

void ActivationOffload::before_forward(device::Stream& compute, std::size_t layer) {
  if (layer < layers_.size()) compute.wait(stored_[layer % places]);
}

void ActivationOffload::after_forward(device::Stream& compute, std::size_t layer) {
  if (layer >= layers_.size() || layers_[layer].on_host == nullptr) return;
  Layer& l = layers_[layer];
  copies_.to_host.wait(compute.record());
  l.stored = device::download_async(copies_.to_host, l.on_host, l.kept);
  l.is_stored = true;
  stored_[layer % places] = l.stored;
}

void ActivationOffload::before_backward(device::Stream& compute, std::size_t layer,
                                        std::size_t first) {
  if (layer < layers_.size()) {
    fetch(compute, layer);
    compute.wait(layers_[layer].here);
  }
  if (layer > first) fetch(compute, layer - 1);
}

/// Copies a layer's data back, unless it is there.
void ActivationOffload::fetch(device::Stream& compute, std::size_t layer) {
  Layer& l = layers_[layer];
  if (!std::exchange(l.is_stored, false)) return;
  copies_.to_device.wait(l.stored);
  copies_.to_device.wait(stored_[layer % places]);
  copies_.to_device.wait(compute.record());  // the layer that had the place before
  l.here = device::upload_async(copies_.to_device, l.kept, l.on_host);
}

}  // namespace llamesh::model
