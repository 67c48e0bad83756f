#pragma once

#include <cstdint>

/// What record_shim.cpp writes of each call that changes the disk, and disk_record.cpp reads: this
/// header, then the names, then the bytes.
namespace llamesh::test {

enum class Call : std::uint32_t {
  make_file,
  make_folder,
  write,
  resize,
  rename,
  exchange,
  remove,
  sync
};

struct CallHeader {
  Call call{};
  std::int32_t rank = 0;
  std::uint64_t inode = 0;         ///< of the file or folder that is made, written or synced
  std::uint64_t folder = 0;        ///< inode of the folder that holds the name
  std::uint64_t other_folder = 0;  ///< that of the new name of a rename
  std::int64_t offset = 0;         ///< of a write; the new size of a resize
  std::uint32_t name_bytes = 0;
  std::uint32_t other_name_bytes = 0;
  std::uint64_t bytes = 0;  ///< of a write
};

}  // namespace llamesh::test
