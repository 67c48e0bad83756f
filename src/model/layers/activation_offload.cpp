#include "model/layers/activation_offload.hpp"

#include <utility>

namespace llamesh::model {

ActivationOffload::ActivationOffload(const std::vector<Tensor>& kept) {
  const device::ScopedMemoryTag use(device::MemoryUse::activations);
  const auto copied = kept.size() - places;
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
  if (layer >= places && layer < layers_.size()) compute.wait(layers_[layer - places].stored);
}

void ActivationOffload::after_forward(device::Stream& compute, std::size_t layer) {
  if (layer >= layers_.size() || layers_[layer].on_host == nullptr) return;
  Layer& l = layers_[layer];
  copies_.to_host.wait(compute.record());
  l.stored = device::download_async(copies_.to_host, l.on_host, l.kept);
  l.is_stored = true;
}

void ActivationOffload::before_backward(device::Stream& compute, std::size_t layer) {
  if (layer < layers_.size()) compute.wait(layers_[layer].here);
  if (layer == 0 || !std::exchange(layers_[layer - 1].is_stored, false)) return;
  Layer& next = layers_[layer - 1];
  copies_.to_device.wait(next.stored);
  copies_.to_device.wait(compute.record());  // the layer that had the slot before
  next.here = device::upload_async(copies_.to_device, next.kept, next.on_host);
}

}  // namespace llamesh::model
