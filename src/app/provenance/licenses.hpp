#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace llamesh::app {

/// License as its owner states it.
struct License {
  std::string name;       ///< as in a README.md's `license:`, or the name of a file with the text
  std::string stated_in;  ///< that file's path
  bool operator==(const License&) const = default;
};

/// Returns a folder's license: `license:` in its README.md's front matter, as on Hugging Face, else
/// its file LICENSE. Returns nothing if there is neither. A file that cannot be read states
/// nothing.
std::optional<License> license_in(const std::filesystem::path& folder);

}  // namespace llamesh::app
