#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/tree.hpp"
#include "sharding/spec_names.hpp"

namespace llamesh::config {

/// Resolves a path in the inputs: relative to the input file `name`, or to the current folder if
/// the path is from the command line.
std::filesystem::path resolve_path(const Node& path, const std::string& name);

/// Returns true if the overrides give this key a value, also as part of its group. Throws a user
/// error if one of them is malformed.
bool sets(const std::vector<std::string>& overrides, const std::string& key);

/// Removes keys from an input file's tree that `overrides`, not yet applied, replace by another
/// key: model.hf and model.file replace the file's model (all keys in its group except `load` and
/// `lora`), train.epochs replaces train.steps and vice versa. Returns a log line if part of the
/// model is replaced, else nothing.
std::string drop_replaced(Node& root, const std::vector<std::string>& overrides,
                          const std::string& name);

/// Merges the shape of the model in `model.hf` or `model.file` under the keys in `model`, which
/// take precedence. Loads a Hugging Face folder's weights unless the inputs say otherwise; does not
/// read its config.json if all shape keys are given.
void include_model(Node& root, const std::string& name);

/// Resolves the path in `reference.hf`.
void include_reference(Node& root, const std::string& name);

/// Returns true if an override is for a spec entry, "sharding.spec.NAME=...".
bool is_spec_override(std::string_view text);

/// Turns the inputs' `sharding.spec` into a flat map by name: reads a file (`resolve` returns its
/// path), joins groups of keys into dotted names, then lets `overrides` replace or add entries; a
/// null override removes its entry. From torchprime's older files, which have the spec in a group
/// `sharding`, everything else is dropped.
void include_spec(Node& root, const std::vector<std::string>& overrides,
                  const std::function<std::string(const Node&)>& resolve);

/// Returns the spec in a flat map by name.
sharding::Spec spec_of(const Node& map);

/// Formats the dims as YAML for spec_of().
std::string yaml_dims(const std::vector<std::vector<std::string>>& dims);

}  // namespace llamesh::config
