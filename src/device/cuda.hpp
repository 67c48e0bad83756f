#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/queue.hpp"

/// GPU implementation for this layer: cuda/*.cpp, or cuda_absent.cpp in a build without CUDA. Call
/// only if kind() == Kind::cuda, except devices(), why_no_devices(), failure() and
/// visible_bus_ids().
namespace llamesh::device::cuda {

int devices();
std::string why_no_devices();
/// Returns CUDA's error message if a driver is installed but cannot list its devices; else empty.
std::string failure();
/// Makes device `index` this process's device and checks that it works.
void use(int index);
std::string bus_id();
std::string visible_bus_ids();
/// Returns the MIG profile, e.g. "1g.10gb", or an empty string without MIG.
std::string mig_profile();
std::string description();
std::int64_t memory_bytes();
std::int64_t free_memory_bytes();
void start_profiler();
void stop_profiler();

/// Allocates device memory, initially zero.
std::shared_ptr<void> allocate(std::int64_t bytes);
/// Allocates pinned host memory.
std::shared_ptr<void> allocate_pinned(std::int64_t bytes);

enum class Priority : bool { normal, high };
std::unique_ptr<Stream::Queue> make_queue(Priority priority);

void upload(Stream& stream, void* to, const void* from, std::size_t bytes);
void download(Stream& stream, void* to, const void* from, std::size_t bytes);
/// Copy without waiting; the host memory must come from allocate_pinned().
void upload_async(Stream& stream, void* to, const void* from, std::size_t bytes);
void download_async(Stream& stream, void* to, const void* from, std::size_t bytes);
void copy(Stream& stream, void* to, const void* from, std::size_t bytes);
void set_bytes(Stream& stream, void* data, unsigned char value, std::size_t bytes);

}  // namespace llamesh::device::cuda
