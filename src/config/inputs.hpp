#pragma once

#include <string>
#include <vector>

#include "train/setup/run_inputs.hpp"

namespace llamesh::config {

class KeySource;

/// All options in an input file: each layer's, under the names of the file's groups.
using train::Inputs;

/// Reads an input file and applies `overrides` ("key.path=value"). Throws a one-line user error
/// that begins with file and line for any fault in it.
///
/// `model.file` names a file with `model` keys, relative to the input file (on the command line: to
/// the current folder); keys given beside it take precedence. `model.hf` names a Hugging Face
/// folder in the same way: its config.json has the `model` keys.
Inputs load_inputs(const std::string& path, const std::vector<std::string>& overrides = {});

/// Reads inputs from text; `name` is its path in messages and for `model.file`. Text from to_yaml()
/// has every key, so no other file is opened for it: it can be sent to other ranks and read there.
Inputs parse_inputs(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// Checks keys against each other, and fills in implied values, as parse_inputs() does. Throws a
/// user error that begins with the source of the keys.
void complete(Inputs& inputs, const KeySource& source);

/// Completes `data` from the disk. Called on one rank, since another node's disk may have other
/// files; the result is sent to all.
/// - Folders, lists and patterns in `data.train`, `data.validation` and `evaluate.files` become
///   their files (data::find_data_files), unless no file is read.
/// - `data.format: auto` becomes these files' format (data::format_of).
/// - `data.tokenizer: auto` becomes the folder `model.hf` if it has a tokenizer, else `byte`.
///
/// Then checks the keys against each other again: some checks need the format.
/// Adds anything that a user should know about this to `notes`. Throws a user error that begins
/// with `name`, or "command line" if `overrides` set the key, and the key.
void resolve_data(Inputs& inputs, const std::string& name,
                  const std::vector<std::string>& overrides = {});

/// Lists all keys with their values (--print-config); parse_inputs reads it back to the same
/// Inputs.
std::string to_yaml(const Inputs& inputs);

/// Lists the differences between a run's resolved inputs (to_yaml) before and now, key by key:
/// "optimizer.lr 0.001 -> 0.0005", "evaluate.files.code added: [b.txt]". Skips groups that do not
/// affect training (run, checkpoint, log, debug), and options that only one text has, as with
/// another llamesh version. Returns nothing if `before` is not such a file.
std::vector<std::string> changes(const std::string& before, const std::string& now);

}  // namespace llamesh::config
