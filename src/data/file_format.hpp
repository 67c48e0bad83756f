#pragma once

#include <span>
#include <string>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Determines a data file's format from its name and first bytes:
/// - megatron: the .bin, the .idx, or the name without extension, of a Megatron-LM pair;
/// - tokens: a file with llm.c's or NumPy's header or, if `ids` gives the integer type, any other
/// file without
///   a JSON name;
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
