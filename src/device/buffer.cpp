#include "device/buffer.hpp"

#include <sys/mman.h>

#include <cstring>
#include <exception>
#include <utility>

#include "device/cuda.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::device {
namespace {

const char* advice = nullptr;

/// Maps anonymous pages: zero without being written, freed at once, and huge if the kernel allows,
/// which avoids most TLB misses in GEMMs. While an error unwinds, they stay mapped: other threads
/// and MPI may still write there, for ranks that no longer wait for one another.
std::shared_ptr<void> map_pages(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    fail(ExitCode::bad_input, "cannot allocate {} bytes ({} are in use){}", bytes,
         MemoryMeter::instance().in_use(), memory_advice());
  if (size >= (std::size_t{1} << 21U)) madvise(at, size, MADV_HUGEPAGE);
  const bool is_real = kind() != Kind::simulated;
  return {at, [size, is_real](void* p) {
            if (!is_real || std::uncaught_exceptions() == 0) munmap(p, size);
          }};
}

}  // namespace

bool host_accessible(MemoryKind memory) {
  return memory == MemoryKind::host || kind() == Kind::cpu;
}

Stream& stream_of(MemoryKind memory) {
  return memory == MemoryKind::host ? host_stream() : compute_stream();
}

void advise_on_memory(const char* how) {
  advice = how;
}

std::string memory_advice() {
  return advice == nullptr ? "" : std::string("; ") + advice;
}

Buffer::Buffer(std::int64_t bytes, Counted counted) : bytes_(bytes), own_bytes_(bytes) {
  expects(bytes >= 0, "a buffer of {} bytes", bytes);
  if (bytes == 0) return;
  switch (kind()) {
    case Kind::cpu:
      owner_ = map_pages(bytes);
      break;
    case Kind::cuda:
      owner_ = cuda::allocate(bytes);
      break;
    case Kind::simulated:
      owner_ = reserve_addresses(bytes);
      break;
  }
  data_ = static_cast<std::byte*>(owner_.get());
  if (counted == Counted::yes) allocation_ = ScopedAllocation(bytes);
}

Buffer::Buffer(std::shared_ptr<void> owner, std::byte* data, std::int64_t bytes,
               std::int64_t own_bytes)
    : owner_(std::move(owner)),
      data_(data),
      bytes_(bytes),
      own_bytes_(own_bytes),
      allocation_(own_bytes) {}

Buffer Buffer::on_host(std::int64_t bytes) {
  // A simulated device still has a real host.
  auto buffer = on_host(bytes, kind() == Kind::cuda ? cuda::allocate_pinned : map_pages);
  // On a CPU the host reads results in place, so the simulated copies do not exist.
  const auto* simulation = Simulation::active();
  if (simulation != nullptr && simulation->hardware().kind == Kind::cpu) buffer.stop_counting();
  return buffer;
}

Buffer Buffer::in(MemoryKind memory, std::int64_t bytes) {
  if (memory == MemoryKind::device) return Buffer(bytes);
  if (kind() == Kind::simulated) return on_host(bytes, reserve_addresses);
  auto buffer = on_host(bytes);
  if (kind() == Kind::cuda && bytes > 0)  // pinned memory is not zeroed
    std::memset(buffer.data(), 0, static_cast<std::size_t>(bytes));
  return buffer;
}

Buffer Buffer::on_host(std::int64_t bytes, std::shared_ptr<void> allocate(std::int64_t bytes)) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  buffer.owner_ = allocate(bytes);
  buffer.data_ = static_cast<std::byte*>(buffer.owner_.get());
  buffer.bytes_ = buffer.own_bytes_ = bytes;
  buffer.allocation_ = ScopedAllocation(MemoryMeter::host(), bytes);
  return buffer;
}

Tensor Buffer::tensor(DType dtype, std::initializer_list<std::int64_t> shape,
                      std::int64_t offset) const {
  Tensor view(data_ + offset, dtype, shape);
  expects(offset >= 0 && offset + view.bytes() <= bytes_,
          "a view of {} bytes at {} in a buffer of {}", view.bytes(), offset, bytes_);
  return view;
}

}  // namespace llamesh::device
