#include "device/async_copy.hpp"

#include <cstring>

#include "core/trace.hpp"
#include "device/cuda.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::device {
namespace {

/// Copies on the CPU, in a worker thread.
void copy_traced(const char* direction, void* to, const void* from, std::size_t bytes) {
  TraceScope scope("copy", direction);
  if (auto* const event = scope.event()) {
    set_text(event->lane, direction);
    event->bytes = static_cast<std::int64_t>(bytes);
  }
  std::memcpy(to, from, bytes);
}

}  // namespace

Event upload_async(Stream& stream, const Tensor& to, const void* from) {
  const auto bytes = dense_bytes(to);
  if (stream.kind() == Kind::simulated)
    simulate_host_copy(stream, bytes);
  else if (stream.on_gpu())
    cuda::upload_async(stream, to.data(), from, bytes);
  else
    stream.run(
        [data = to.data(), from, bytes] { copy_traced("copies to device", data, from, bytes); });
  return stream.record();
}

Event download_async(Stream& stream, void* to, const Tensor& from) {
  const auto bytes = dense_bytes(from);
  if (stream.kind() == Kind::simulated)
    simulate_host_copy(stream, bytes);
  else if (stream.on_gpu())
    cuda::download_async(stream, to, from.data(), bytes);
  else
    stream.run([to, data = from.data(), bytes] { copy_traced("copies to host", to, data, bytes); });
  return stream.record();
}

}  // namespace llamesh::device
