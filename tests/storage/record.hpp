#pragma once

#include <cstdint>

/// Format shared by record_shim.cpp (writer) and disk_record.cpp (reader). Each call that changes
/// the disk has this header, then the names, then the bytes.
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
  std::uint64_t inode = 0;         ///< of the file or folder created, written or synced
  std::uint64_t folder = 0;        ///< inode of the folder that holds the name
  std::uint64_t other_folder = 0;  ///< folder of the new name, for a rename
  std::int64_t offset = 0;         ///< for a write; for a resize, the new size
  std::uint32_t name_bytes = 0;
  std::uint32_t other_name_bytes = 0;
  std::uint64_t bytes = 0;  ///< for a write
};

}  // namespace llamesh::test
