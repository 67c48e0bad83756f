#pragma once

#include <span>
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

/// Returns the files that match `name`. With *, ? or [ in it, and unless a file has exactly this
/// name, it is a pattern (glob(7)), and its files come in byte order; any other name is used
/// literally. At each depth a folder is read once, under its first name: a warning says where
/// symbolic links lead to it under others. Megatron pairs are matched, and named, without their
/// extension. Throws a user error if no file matches, a folder in the path cannot be read, or more
/// than ten million names match.
std::vector<std::string> matching_files(const std::string& name, Format format);

/// Returns all regular files below a folder, in byte order of their paths. Skips names that begin
/// with a dot, like patterns do. Follows symbolic links and visits each folder once, so loops end.
/// Throws a user error for a folder that cannot be read or has no files, and beyond 1,000,000
/// entries.
std::vector<std::string> files_below(const std::string& folder);

/// Returns true for the .bin, the .idx, or the name without extension, of a Megatron-LM pair. Any
/// other name needs no disk access.
bool is_megatron(const std::string& path);

/// Determines a data file's format from its name and first bytes:
/// - megatron: what is_megatron() accepts;
/// - tokens: a file with llm.c's or NumPy's header or, if `ids` gives the integer type, any other
///   file without a JSON name;
/// - jsonl: a .jsonl or .json file;
/// - text: any other file whose first 64 KiB are UTF-8 without NUL and whose name is not .bin.
///
/// Throws a user error with the file's name if it is none of these, empty or cannot be opened.
Format format_of(const std::string& path, TokenDtype ids);

/// Returns the common format. Throws a user error that names two files that differ.
Format format_of(std::span<const std::string> files, TokenDtype ids);

/// Throws a user error unless the file looks like plain text, by name and first bytes.
void check_text(const std::string& path);

}  // namespace llamesh::data
