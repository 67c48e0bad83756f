#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/tree.hpp"

namespace llamesh::config {

/// Resolves a path in the inputs: relative to the input file `name`, or to the current folder if
/// the path is from the command line.
std::filesystem::path resolve_path(const Node& path, const std::string& name);

/// Takes from the tree of an input file what `overrides`, which are not applied yet, say by another
/// key: model.hf and model.file replace the file's model (all keys of its group but `load`),
/// train.epochs its train.steps and the reverse. Returns a line for the log if a part of the model
/// is replaced, else nothing.
std::string drop_replaced(Node& root, const std::vector<std::string>& overrides,
                          const std::string& name);

/// Merges the shape of the model that `model.hf` or `model.file` names under the keys of `model`,
/// which take precedence. Weights of a Hugging Face folder are loaded unless the inputs say
/// otherwise; its config.json is not read if all keys of the shape are given.
void include_model(Node& root, const std::string& name);

}  // namespace llamesh::config
