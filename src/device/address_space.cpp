#include "device/host_memory.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "core/error.hpp"

namespace llamesh::device {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;

/// The lower of the limits on what a process maps, in bytes; RLIM_INFINITY: neither is set.
rlim_t limit_of_this_process() {
  rlim_t lowest = RLIM_INFINITY;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    struct rlimit limit {};
    if (getrlimit(resource, &limit) == 0) lowest = std::min(lowest, limit.rlim_cur);
  }
  return lowest;
}

}  // namespace

std::int64_t library_address_space(int threads) {
  return (256 + 72 * std::int64_t{threads}) * mebibyte;
}

void check_address_space(std::int64_t bytes) {
  const auto limit = limit_of_this_process();
  if (limit == RLIM_INFINITY) return;
  const auto size = static_cast<std::size_t>(bytes);
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  validate(
      at != MAP_FAILED,
      "the limit on this process's address space, {} MiB (ulimit -v or -d), does not leave the "
      "{} MiB that it needs beyond what it has; raise it (ulimit -v unlimited)",
      limit / mebibyte, bytes / mebibyte);
  munmap(at, size);
}

}  // namespace llamesh::device
