#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "device/stream.hpp"
#include "emulator.hpp"

/// Emulated counterpart to ops/cuda/launch.cuh.
namespace llamesh::ops::cuda {
inline namespace emulated {

using emulator::Block;

inline void put(device::Stream& stream, std::function<void()> work) {
  if (stream.on_gpu())
    emulator::put_into_gpu_stream(stream, std::move(work));
  else
    stream.run(std::move(work));
}

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, std::int64_t threads,
            std::int64_t shared_bytes, device::Stream& stream, Arguments... arguments) {
  put(stream, [=] {
    const emulator::Index blocks{static_cast<int>(grid.x), static_cast<int>(grid.y),
                                 static_cast<int>(grid.z)};
    Block::current().run(blocks, static_cast<int>(threads), shared_bytes,
                         [&] { kernel(arguments...); });
  });
}

class Scratch {
 public:
  Scratch(device::Stream& stream, std::int64_t bytes)
      : stream_(stream), data_(std::malloc(static_cast<std::size_t>(bytes))) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0xFF, static_cast<std::size_t>(bytes));
  }
  ~Scratch() {
    put(stream_, [data = data_] { std::free(data); });
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  device::Stream& stream_;
  void* data_;
};

template <class T>
T read_back(device::Stream& stream, const T* from) {
  T value{};
  put(stream, [&] { value = *from; });
  stream.record().wait();
  return value;
}

inline std::int64_t multiprocessors() {
  return 2;  // small, so that grid-stride loops iterate
}

inline std::int64_t shared_bytes_a_block() {
  return emulator::max_shared_bytes;
}

inline bool has_wgmma() {
  return emulator::max_shared_bytes >= std::int64_t{227} * 1024;  // a Hopper
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
