#pragma once

#include <string>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Data files named by one word in the inputs or on the command line.
struct NamedFiles {
  std::vector<std::string> files;
  std::string note = {};  ///< log line if the word is a folder or a list, else empty
};

/// Finds the files named by `word`:
/// - a folder: all files below it (files_below);
/// - @LIST: those named by the lines in the file LIST, each a file, a folder or a pattern, or a
///   comment that begins with #;
/// - a pattern: its matches (matching_files), and the files below matching folders;
/// - anything else: itself.
///
/// Loss masks (is_loss_mask) in folders and among matches are left out: they belong to the token
/// files beside them. A file or folder with exactly this name takes precedence over @ and patterns.
/// Megatron pairs count as one file: Format::megatron names them without extension,
/// Format::automatic by their .bin. Throws a user error if no file is found.
NamedFiles find_data_files(const std::string& word, Format format);

}  // namespace llamesh::data
