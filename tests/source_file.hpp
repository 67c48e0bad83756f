#pragma once

#include <filesystem>
#include <string>

namespace llamesh::test {

/// Returns the path of a file in this repository. From __FILE__ and not from a compile definition,
/// so that ccache can share the objects of tests between clones: it makes __FILE__ relative to the
/// build folder, where tests run.
inline std::string source_file(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path().parent_path() / name).string();
}

}  // namespace llamesh::test
