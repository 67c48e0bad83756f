#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// Throws a user error where this node's folder for shared memory (/dev/shm) cannot be written or
/// has no inode left: MPI needs it for windows and, even with one rank, for files.
void check_shared_memory();

/// Owns memory that all ranks of a group on one node share: an MPI shared-memory window. It starts
/// at a page, is zero at first, and has another address in every process. Construction and
/// destruction are collective; while an exception unwinds, or after MPI_Finalize, it is freed by
/// the end of the process.
class SharedWindow {
 public:
  /// `bytes` in total. Throws a user error with the sizes and `advice` where there is no room: on
  /// one rank, and on the others a PeerFailure.
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
