#include "train/host_state.hpp"

#include <utility>

#include "device/device.hpp"

namespace llamesh::train {
namespace {

bool on_gpu() {
  return device::kind() == device::Kind::cuda;
}

}  // namespace

HostState::HostState(checkpoint::State on_device) : device_(std::move(on_device)), host_(device_) {}

const checkpoint::State& HostState::room() {
  if (!on_gpu() || buffer_) return host_;
  std::int64_t bytes = 0;
  for (const auto& group : device_.groups)
    for (const auto& shard : group.shards) bytes += shard.bytes();
  buffer_ = device::Buffer::on_host(bytes);
  std::int64_t at = 0;
  for (auto& group : host_.groups)
    for (auto& shard : group.shards) {
      shard = buffer_.tensor(DType::f32, {shard.numel()}, at);
      at += shard.bytes();
    }
  return host_;
}

template <class Copy>
void HostState::for_each_shard(const Copy& copy) {
  if (!on_gpu()) return;
  room();
  for (std::size_t g = 0; g < device_.groups.size(); ++g)
    for (std::size_t u = 0; u < device_.groups[g].shards.size(); ++u)
      copy(device_.groups[g].shards[u], host_.groups[g].shards[u]);
}

const checkpoint::State& HostState::fetch() {
  for_each_shard([](const Tensor& device, const Tensor& host) {
    device::download(device::compute_stream(), host.data(), device);
  });
  return host_;
}

void HostState::send() {
  for_each_shard([](const Tensor& device, const Tensor& host) {
    device::upload(device::compute_stream(), device, host.data());
  });
}

}  // namespace llamesh::train
