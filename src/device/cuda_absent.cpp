#include "core/error.hpp"
#include "device/cuda.hpp"

// Replaces cuda/ in a build without CUDA.

namespace llamesh::device::cuda {
namespace {

[[noreturn]] void absent() {
  fail(ExitCode::bad_input, "no GPU: {}; give --device cpu", why_no_devices());
}

}  // namespace

int devices() {
  return 0;
}
std::string why_no_devices() {
  return "this program was built without CUDA (LLAMESH_CUDA=OFF)";
}
std::string failure() {
  return {};
}
void use(int /*index*/) {
  absent();
}
std::string bus_id() {
  absent();
}
std::string mig_profile() {
  return {};
}
std::string visible_bus_ids() {
  return "";
}
std::string description() {
  absent();
}
std::int64_t memory_bytes() {
  absent();
}
std::int64_t free_memory_bytes() {
  absent();
}
void start_profiler() {
  absent();
}
void stop_profiler() {
  absent();
}
std::shared_ptr<void> allocate(std::int64_t /*bytes*/) {
  absent();
}
std::shared_ptr<void> allocate_pinned(std::int64_t /*bytes*/) {
  absent();
}
std::unique_ptr<Stream::Queue> make_queue(Priority /*priority*/) {
  absent();
}
void upload(Stream& /*stream*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {
  absent();
}
void download(Stream& /*stream*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {
  absent();
}
void upload_async(Stream& /*stream*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {
  absent();
}
void download_async(Stream& /*stream*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {
  absent();
}
void copy(Stream& /*stream*/, void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {
  absent();
}
void set_bytes(Stream& /*stream*/, void* /*data*/, unsigned char /*value*/, std::size_t /*bytes*/) {
  absent();
}

}  // namespace llamesh::device::cuda
