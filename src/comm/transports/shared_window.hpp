#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Throws a user error if this node's folder for shared memory (/dev/shm) cannot be written or has
/// no inode left: MPI needs it for windows and, even with one rank, for files.
void check_shared_memory();

/// Memory shared by all ranks in a group on one node: an MPI shared-memory window. It starts at a
/// page, is initially zero, and has a different address in every process. Construction and
/// destruction are collective; while an exception unwinds, or after MPI_Finalize, the process end
/// frees it.
class SharedWindow {
 public:
  /// Allocates `bytes` in total. Without room for it, one rank throws a user error with the sizes
  /// and `advice`, the others a PeerFailure.
  SharedWindow(const Communicator& group, std::int64_t bytes,
               const char* advice = "use more nodes or smaller units");
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  bool contains(const void* at) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= data_ && byte < data_ + bytes_;
  }

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// A barrier between the ranks on one node, in memory that they share and that starts zeroed. After
/// it, everybody sees all writes made before it. A waiting rank yields briefly and then sleeps in
/// the kernel (a futex). It wakes up periodically, so that stop_waiting() ends the wait.
class NodeBarrier {
 public:
  void arrive_and_wait(int ranks);

 private:
  void sleep_while(std::uint32_t generation);

  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a barrier between processes");

}  // namespace llamesh::comm
