#pragma once

#include <filesystem>

#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

/// Throws a user error if the name is taken.
void check_is_new(const std::filesystem::path& target);

/// A folder that all ranks fill under a temporary name beside the final one. commit() renames it;
/// otherwise it is removed.
class NewFolder {
 public:
  /// Creates the temporary folder. Throws as check_is_new(). Collective.
  NewFolder(const std::filesystem::path& target, const comm::Communicator& world);
  /// Removes an uncommitted folder, as far as possible.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Returns the temporary path.
  const std::filesystem::path& path() const { return partial_; }
  /// Renames the folder. Its files must be on disk. Collective.
  void commit();

 private:
  const comm::Communicator& world_;
  std::filesystem::path target_;
  std::filesystem::path partial_;
  bool committed_ = false;
};

}  // namespace llamesh::checkpoint
