#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/queue.hpp"

/// The GPU side of this layer: cuda/*.cpp, or cuda_absent.cpp in a build without CUDA. Its callers
/// have found kind() == Kind::cuda, except for devices(), why_no_devices() and visible_bus_ids().
namespace llamesh::device::cuda {

int devices();
std::string why_no_devices();
/// Makes device `index` the one of this process and looks whether it works.
void use(int index);
std::string bus_id();
std::string visible_bus_ids();
std::string description();

/// Memory of the device, zero at first.
std::shared_ptr<void> allocate(std::int64_t bytes);
/// Memory of the host that the device copies from and to at full speed.
std::shared_ptr<void> allocate_pinned(std::int64_t bytes);

enum class Priority : bool { normal, high };
std::unique_ptr<Stream::Queue> make_queue(Priority priority);

void upload(Stream& stream, void* to, const void* from, std::size_t bytes);
void download(Stream& stream, void* to, const void* from, std::size_t bytes);
/// Without waiting; the host's memory is of allocate_pinned().
void upload_async(Stream& stream, void* to, const void* from, std::size_t bytes);
void download_async(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy(Stream& stream, void* to, const void* from, std::size_t bytes);
void set_bytes(Stream& stream, void* data, unsigned char value, std::size_t bytes);

}  // namespace llamesh::device::cuda
