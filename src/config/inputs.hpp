#pragma once

#include <string>
#include <vector>

#include "train/run_inputs.hpp"

namespace llamesh::config {

/// All options of an input file: each layer's, under the names of the file's groups.
using train::Inputs;

/// Reads an input file and applies `overrides` ("key.path=value"). Throws a user error of one line
/// that begins with file and line for any fault in it.
///
/// `model.file` names a file with the keys of `model`, relative to the input file (on the command
/// line: to the current folder); keys given with it take precedence. `model.hf` names a Hugging
/// Face folder in the same way: its config.json has the keys of `model`.
Inputs load_inputs(const std::string& path, const std::vector<std::string>& overrides = {});

/// The same from text; `name` is used as its path in messages and for `model.file`. The text of
/// to_yaml() has every key, so no other file is opened for it: it can be sent to other ranks and
/// read there.
Inputs parse_inputs(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// Completes `data` by what is on the disk. Called on one rank, since another node's disk may have
/// other files; the result is sent to all.
/// - Folders, lists and patterns in `data.train` and `data.validation` become the files that they
///   name (data::find_data_files), unless no file is read.
/// - `data.format: auto` becomes the format of these files (data::format_of).
/// - `data.tokenizer: auto` becomes the folder `model.hf` if it has a tokenizer, else `byte`.
///
/// Adds to `notes` what a user should know of this. Throws a user error that begins with `name` and
/// the key.
void resolve_data(Inputs& inputs, const std::string& name);

/// All keys with their values (--print-config); parse_inputs reads it back to the same Inputs.
std::string to_yaml(const Inputs& inputs);

}  // namespace llamesh::config
