#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/mesh/communicator.hpp"

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

}  // namespace llamesh::comm
