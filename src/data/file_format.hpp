#pragma once

#include <span>
#include <string>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Determines the format of a data file by its name and its first bytes:
/// - megatron: the .bin, the .idx, or the name without extension, of a Megatron-LM pair;
/// - tokens: a file with llm.c's header, or, where `ids` says which integers they are, any other
///   file whose name is not that of JSON records;
/// - jsonl: a .jsonl or .json file;
/// - text: any other file whose first 64 KiB are UTF-8 without NUL and whose name is not .bin.
///
/// Throws a user error that names the file when it is none of these, empty or cannot be opened.
Format format_of(const std::string& path, TokenDtype ids);

/// The format that all files have. Throws a user error that names two files that differ.
Format format_of(std::span<const std::string> files, TokenDtype ids);

/// Throws a user error unless the file's name and first bytes are those of plain text.
void check_text(const std::string& path);

}  // namespace llamesh::data
