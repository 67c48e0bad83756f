#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "core/error.hpp"

namespace llamesh::train {

/// Creates a folder and its missing parents, and removes those that are empty in the end. An I/O
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

/// Whether the folder, which exists on rank 0, is the same one on every node: rank 0 makes a file
/// there under a new name, the ranks with `first_on_node` open it and add a byte each, and rank 0
/// finds their bytes in it. Returns the error on this rank: that the hosts, which it names, have
/// different folders (78), or that this one cannot write (74). Nothing when all is well, and on the
/// ranks that are not first. Waits up to `timeout` for a file that does not appear, since a
/// network file system may cache that the folder was missing; else it takes the time of a few file
/// operations. Leaves no files. Collective.
std::optional<Error> shared_folder_problem(
    const comm::Communicator& world, bool first_on_node, const std::filesystem::path& folder,
    std::chrono::milliseconds timeout = std::chrono::seconds(10));

/// The same as an error, with its exit code on all ranks.
void check_shared_folder(const comm::Communicator& world, bool first_on_node,
                         const std::filesystem::path& folder,
                         std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace llamesh::train
