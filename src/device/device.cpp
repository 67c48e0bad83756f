#include "device/device.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>

#include "core/error.hpp"
#include "device/cuda.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::device {
namespace {

Kind chosen = Kind::cpu;

const std::string cgroups = "/sys/fs/cgroup";

/// Returns the path of this process's cgroup (v2) below `cgroups`; "" if there is none.
std::string own_cgroup() {
  constexpr std::string_view prefix = "0::";
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(prefix)) return line.substr(prefix.size());
  return "";
}

}  // namespace

Kind kind() {
  return Simulation::active() == nullptr ? chosen : Kind::simulated;
}

Kind kind_of_kernels() {
  const auto* const simulation = Simulation::active();
  return simulation == nullptr ? chosen : simulation->hardware().kind;
}

int cuda_devices() {
  return cuda::devices();
}

std::string why_no_cuda() {
  return cuda::why_no_devices();
}

std::string cuda_failure() {
  return cuda::failure();
}

std::int64_t installed_gpus(const char* folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return error ? 0 : std::distance(begin(entries), end(entries));
}

void use_cuda(int index) {
  cuda::use(index);
  chosen = Kind::cuda;
}

std::string identity() {
  return kind() == Kind::cuda ? cuda::bus_id() : "";
}

std::string mig_profile() {
  return kind() == Kind::cuda ? cuda::mig_profile() : "";
}

std::string visible_identities() {
  return cuda::visible_bus_ids();
}

std::string description() {
  if (auto* simulation = Simulation::active()) return simulation->hardware().name;
  return chosen == Kind::cuda ? cuda::description() : "CPU";
}

std::int64_t host_memory_bytes() {
  std::int64_t bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream limit(cgroups + own_cgroup() + "/memory.max");
  std::int64_t allowed = 0;  // the file holds "max" if there is no limit
  if (limit >> allowed) bytes = std::min(bytes, allowed);
  return bytes;
}

double cpu_quota(const std::string& root, std::string group) {
  double cores = std::numeric_limits<double>::infinity();
  while (true) {
    std::ifstream limit(root + group + "/cpu.max");
    double microseconds = 0;  // the file holds "max" if there is no quota
    double period = 0;
    if (limit >> microseconds >> period && period > 0)
      cores = std::min(cores, microseconds / period);
    const auto slash = group.rfind('/');
    if (slash == group.npos) return cores;
    group.resize(slash);
  }
}

double cpu_quota() {
  return cpu_quota(cgroups, own_cgroup());
}

std::int64_t free_gpu_memory_bytes() {
  return cuda::free_memory_bytes();
}

std::int64_t memory_bytes() {
  return kind() == Kind::cuda ? cuda::memory_bytes() : host_memory_bytes();
}

void start_profiler() {
  if (kind() == Kind::cuda) cuda::start_profiler();
}

void stop_profiler() {
  if (kind() == Kind::cuda) cuda::stop_profiler();
}

std::size_t dense_bytes(const Tensor& tensor) {
  expects(tensor.dense(), "a copy of a tensor with rows apart");
  return static_cast<std::size_t>(tensor.bytes());
}

void upload(Stream& stream, const Tensor& to, const void* from) {
  const auto bytes = dense_bytes(to);
  if (stream.kind() == Kind::simulated) return simulate_host_copy(stream, bytes);
  if (stream.on_gpu()) return cuda::upload(stream, to.data(), from, bytes);
  stream.run([data = to.data(), from, bytes] { std::memcpy(data, from, bytes); });
  stream.record().wait();
}

void download(Stream& stream, void* to, const Tensor& from) {
  const auto bytes = dense_bytes(from);
  if (stream.kind() == Kind::simulated) return simulate_host_copy(stream, bytes);
  if (stream.on_gpu()) return cuda::download(stream, to, from.data(), bytes);
  stream.run([to, data = from.data(), bytes] { std::memcpy(to, data, bytes); });
  stream.record().wait();
}

void copy_bytes(Stream& stream, const Tensor& to, const Tensor& from) {
  const auto bytes = dense_bytes(to);
  expects(from.dtype() == to.dtype() && dense_bytes(from) == bytes, "a copy of {} bytes to {}",
          from.bytes(), bytes);
  if (stream.kind() == Kind::simulated) return simulate_copy(stream, 2 * bytes);
  if (stream.on_gpu()) return cuda::copy(stream, to.data(), from.data(), bytes);
  stream.run([data = to.data(), source = from.data(), bytes] { std::memcpy(data, source, bytes); });
}

void set_bytes(Stream& stream, const Tensor& tensor, unsigned char value) {
  const auto bytes = dense_bytes(tensor);
  if (stream.kind() == Kind::simulated) return simulate_copy(stream, bytes);
  if (stream.on_gpu()) return cuda::set_bytes(stream, tensor.data(), value, bytes);
  stream.run([data = tensor.data(), value, bytes] { std::memset(data, value, bytes); });
}

}  // namespace llamesh::device
