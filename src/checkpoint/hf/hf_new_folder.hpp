#pragma once

#include <filesystem>

#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// A folder that all ranks fill under a temporary name in the same parent folder; it gets its name
/// when it is committed, else it is removed.
class NewFolder {
 public:
  /// Makes the temporary folder. Throws a user error when the name is taken. Collective.
  NewFolder(std::filesystem::path target, const comm::Communicator& world);
  /// Removes what was not committed, as far as possible.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// The temporary one.
  const std::filesystem::path& path() const { return partial_; }
  /// Its files must be on the disk. Collective.
  void commit();

 private:
  const comm::Communicator& world_;
  std::filesystem::path target_;
  std::filesystem::path partial_;
  bool committed_ = false;
};

}  // namespace llamesh::checkpoint
