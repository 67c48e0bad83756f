#pragma once

#include <string>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// The files that `name` matches. With *, ? or [ in it, and unless a file has exactly this name, it
/// is a pattern of glob(7), and its files come in the byte order of their names; any other name is
/// taken as it is. At each depth a folder is read once, by the first of its names: a warning says
/// where symbolic links lead to it by others. Megatron pairs are matched, and named, without their
/// extension. Throws a user error when no file matches, a folder in the path cannot be read, or
/// more than ten million names match.
std::vector<std::string> matching_files(const std::string& name, Format format);

}  // namespace llamesh::data
