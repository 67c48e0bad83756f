#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "core/error.hpp"

namespace llamesh::train {

/// A folder created with its missing parents; the destructor removes those still empty. An I/O
/// failure throws (exit 74).
class BorrowedFolder {
 public:
  explicit BorrowedFolder(const std::filesystem::path& folder);
  ~BorrowedFolder();
  BorrowedFolder(const BorrowedFolder&) = delete;
  BorrowedFolder& operator=(const BorrowedFolder&) = delete;

 private:
  std::vector<std::filesystem::path> made_;
};

/// Checks that the folder, which exists on rank 0, is the same one on every node. Rank 0 creates a
/// file there under a new name, the ranks with `first_on_node` open it and each add a byte, and
/// rank 0 looks for these bytes. Returns this rank's error: the named hosts have different folders
/// (78), or this host cannot write (74). Returns nothing on success, and on ranks that are not
/// first. Waits up to `timeout` for a file that does not appear, since a network file system may
/// cache a missing folder; otherwise takes a few file operations. Leaves no files. Collective.
std::optional<Error> shared_folder_problem(
    const comm::Communicator& world, bool first_on_node, const std::filesystem::path& folder,
    std::chrono::milliseconds timeout = std::chrono::seconds(10));

/// Throws that error, with its exit code on all ranks.
void check_shared_folder(const comm::Communicator& world, bool first_on_node,
                         const std::filesystem::path& folder,
                         std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace llamesh::train
