#pragma once

#include "checkpoint/state.hpp"
#include "device/buffer.hpp"

namespace llamesh::train {

/// The state of a run in host memory, where checkpoints read and write it. On the CPU these are the
/// tensors themselves; of a GPU's they are copies, in memory that is allocated at the first call
/// and kept: 12 P/S bytes a rank with AdamW.
class HostState {
 public:
  /// `on_device` shows tensors that stay alive and in place.
  explicit HostState(checkpoint::State on_device);

  /// As it is now, behind the work of the compute stream.
  const checkpoint::State& fetch();
  /// Room for a state to be read into; its contents are meaningless on a GPU.
  const checkpoint::State& room();
  /// Sends what was read into room() to the device.
  void send();

 private:
  template <class Copy>
  void for_each_shard(const Copy& copy);

  checkpoint::State device_;
  checkpoint::State host_;
  device::Buffer buffer_;  ///< on a GPU
};

}  // namespace llamesh::train
