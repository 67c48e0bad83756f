#pragma once

#include <string>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Data files that one word of the inputs or of the command line names.
struct NamedFiles {
  std::vector<std::string> files;
  std::string note = {};  ///< one line for the log if the word is a folder or a list, else empty
};

/// Finds the files that `word` names:
/// - a folder: all files below it (files_below);
/// - @LIST: those that the lines of the file LIST name, each a file, a folder or a pattern;
/// - a pattern: those that it matches (matching_files), and those below matching folders;
/// - anything else: itself.
///
/// A file or folder with exactly this name goes before @ and patterns. Megatron pairs count as one
/// file: with Format::megatron they are named without their extension, with Format::automatic by
/// their .bin. Throws a user error when no file is found.
NamedFiles find_data_files(const std::string& word, Format format);

}  // namespace llamesh::data
