#include "train/health/tensor_hasher.hpp"

#include <algorithm>

#include "device/device.hpp"

namespace llamesh::train {

void TensorHasher::add(RunningHash& hash, device::Stream& stream, const Tensor& tensor) {
  if (!stream.on_gpu()) {
    stream.record().wait();
    hash.add(tensor.data(), static_cast<std::size_t>(tensor.bytes()));
    return;
  }
  if (!piece_) piece_ = device::Buffer::on_host(piece_bytes);
  const auto piece_numel = piece_bytes / size_of(tensor.dtype());
  for (std::int64_t at = 0; at < tensor.numel(); at += piece_numel) {
    const auto piece = tensor.slice(at, std::min(piece_numel, tensor.numel() - at));
    device::download(stream, piece_.data(), piece);
    hash.add(piece_.data(), static_cast<std::size_t>(piece.bytes()));
  }
}

}  // namespace llamesh::train
