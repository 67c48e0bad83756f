#pragma once

#include <string>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Returns the files that match `name`. With *, ? or [ in it, and unless a file has exactly this
/// name, it is a pattern (glob(7)), and its files come in byte order; any other name is taken as it
/// is. At each depth a folder is read once, under its first name: a warning says where symbolic
/// links lead to it under others. Megatron pairs are matched, and named, without their extension.
/// Throws a user error if no file matches, a folder in the path cannot be read, or more than ten
/// million names match.
std::vector<std::string> matching_files(const std::string& name, Format format);

}  // namespace llamesh::data
