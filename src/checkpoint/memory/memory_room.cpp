#include "checkpoint/memory/memory_room.hpp"

#include <system_error>

#include "checkpoint/memory/memory_folder.hpp"

namespace llamesh::checkpoint {

namespace fs = std::filesystem;

std::int64_t room_for_snapshots(const fs::path& run_folder) {
  const fs::path prefix = memory_folder_prefix(run_folder);
  std::error_code error;
  const auto space = fs::space(prefix.parent_path(), error);
  auto bytes = error ? 0 : static_cast<std::int64_t>(space.available);
  for (fs::recursive_directory_iterator
           at(prefix.parent_path(), fs::directory_options::skip_permission_denied, error),
       end;
       !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at.depth() == 0 && !at->path().native().starts_with(prefix.native()))
      at.disable_recursion_pending();
    else if (at->is_regular_file(ignored))
      bytes += static_cast<std::int64_t>(at->file_size(ignored));
  }
  return bytes;
}

}  // namespace llamesh::checkpoint
