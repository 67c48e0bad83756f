#pragma once

#include <string>
#include <vector>

namespace llamesh::data {

/// Returns all regular files below a folder, in byte order of their paths. Skips names that begin
/// with a dot, like patterns do. Follows symbolic links and visits each folder once, so loops end.
/// Throws a user error for a folder that cannot be read or has no files, and beyond 1,000,000
/// entries.
std::vector<std::string> files_below(const std::string& folder);

}  // namespace llamesh::data
