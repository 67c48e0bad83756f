#include "comm/transports/shared_window.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/mpi.hpp"
#include "core/error.hpp"
#include "core/mapped_range.hpp"
#include "device/buffer.hpp"

namespace llamesh::comm {
namespace {

constexpr std::int64_t page = 4096;

/// Returns the folder where Open MPI puts window memory.
const char* backing_folder() {
  const char* chosen = std::getenv("OMPI_MCA_osc_sm_backing_directory");
  return chosen != nullptr ? chosen : "/dev/shm";
}

/// Throws unless the file system has room: a larger window would kill the process with SIGBUS at a
/// later write.
void validate_room(std::int64_t bytes, const char* advice) {
  check_shared_memory();
  struct statvfs room {};
  if (statvfs(backing_folder(), &room) != 0) return;
  const auto free = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
  validate_host(
      bytes <= free,
      "the ranks of a node need {} bytes of shared memory and {} has {} free; enlarge it (mount "
      "-o remount,size=...), or {}",
      bytes, backing_folder(), free, advice);
}

constexpr int yields_before_futex = 64;
constexpr timespec longest_sleep{0, 50'000'000};

// Not FUTEX_PRIVATE: the waiters are other processes.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr,
          0);
}

}  // namespace

void check_shared_memory() {
  const int error = access(backing_folder(), W_OK) == 0 ? 0 : errno;
  validate_host(
      error == 0,
      "MPI keeps the memory that the ranks of a node share in {}, which cannot be written: "
      "{}; mount it for writing",
      backing_folder(), std::strerror(error));
  struct statvfs room {};
  const bool full = statvfs(backing_folder(), &room) == 0 && room.f_files > 0 && room.f_favail == 0;
  validate_host(
      !full,
      "MPI keeps the memory that the ranks of a node share in {}, where all {} inodes are "
      "taken; remove files that ended jobs have left there, or allow more (mount -o "
      "remount,nr_inodes=...)",
      backing_folder(), room.f_files);
}

struct SharedWindow::Handle {
  MPI_Win window = MPI_WIN_NULL;
};

SharedWindow::SharedWindow(const Communicator& group, std::int64_t bytes, const char* advice)
    : handle_(std::make_unique<Handle>()), bytes_(bytes) {
  expects(bytes >= 0, "a window of {} bytes", bytes);
  if (group.size() > 1)
    agree(group, [&] {
      if (group.rank() == 0) validate_room(bytes + page, advice);
    });
  std::byte* own = nullptr;
  const MPI_Aint size = group.rank() == 0 ? static_cast<MPI_Aint>(bytes + page) : 0;
  const auto allocate = [&] {
    const InCollective in(group.members(), "allocation", "shared memory");
    return MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, native(group), &own, &handle_->window);
  };
  const int code = allocate();
  if (code != MPI_SUCCESS)
    fail(ExitCode::bad_input, "cannot allocate {} bytes that the ranks of a node share: {}{}",
         bytes, error_text(code), device::memory_advice());
  MPI_Aint found = 0;
  int unit = 0;
  check(MPI_Win_shared_query(handle_->window, 0, &found, &unit, &own), "MPI_Win_shared_query");
  // Segments are mapped at pages, so the distance to the next page is the same in every process.
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(own) % page);
  data_ = own + (page - past) % page;
  // Each rank first touches a part, so that the pages spread over all its cores' memory.
  const std::int64_t share = (bytes / group.size() / page + 1) * page;
  const std::int64_t first = std::min(bytes, group.rank() * share);
  const MappedRange touched({data_, static_cast<std::size_t>(bytes)},
                            MappedRange::Kind::shared_memory);
  std::memset(data_ + first, 0, static_cast<std::size_t>(std::min(share, bytes - first)));
  group.barrier();
}

SharedWindow::~SharedWindow() {
  if (handle_->window == MPI_WIN_NULL || !may_free()) return;
  if (MPI_Win_free(&handle_->window) != MPI_SUCCESS)
    spdlog::warn("a shared-memory window could not be freed");
}

void NodeBarrier::arrive_and_wait(int ranks) {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks)) {
    arrived_.store(0, std::memory_order_relaxed);
    // Sequentially consistent, like the sleepers' side: either we see the sleeper, or its futex
    // call sees the new generation and returns at once.
    generation_.store(generation + 1);
    if (sleepers_.load() > 0) futex(generation_, FUTEX_WAKE, INT_MAX, nullptr);
    return;
  }
  for (int i = 0; i < yields_before_futex; ++i) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    sched_yield();
  }
  sleep_while(generation);
}

void NodeBarrier::sleep_while(std::uint32_t generation) {
  ++sleepers_;
  while (generation_.load() == generation) {
    throw_if_stopped();
    futex(generation_, FUTEX_WAIT, generation, &longest_sleep);
  }
  --sleepers_;
}

}  // namespace llamesh::comm
