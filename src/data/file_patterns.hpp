#pragma once

#include <string>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// The files that `name` stands for. With *, ? or [ in it, and unless a file has just this name, it
/// is a pattern of glob(7) and stands for the files that it matches, in the byte order of their
/// names; any other name stands for itself. Megatron pairs are matched, and named, without their
/// extension. Throws a user error when no file matches, or a folder on the way cannot be read.
std::vector<std::string> matching_files(const std::string& name, Format format);

}  // namespace llamesh::data
