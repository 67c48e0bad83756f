#pragma once

#include <string>

namespace llamesh::test {

/// Returns the path of a file or folder of this repository, e.g. "inputs/tiny.yaml". Only
/// source_file.cpp has its absolute path, so that clones share the objects of all other tests
/// (ccache).
std::string source_file(const std::string& name);

}  // namespace llamesh::test
