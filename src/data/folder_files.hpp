#pragma once

#include <string>
#include <vector>

namespace llamesh::data {

/// Returns all regular files below a folder, in the byte order of their paths. Names that begin
/// with a dot are left out, as patterns leave them out. Symbolic links are followed, and each
/// folder is visited once, so loops end. Throws a user error for a folder that cannot be read, for
/// one without files, and beyond 1,000,000 entries.
std::vector<std::string> files_below(const std::string& folder);

}  // namespace llamesh::data
