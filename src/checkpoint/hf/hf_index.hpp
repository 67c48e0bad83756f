#pragma once

#include <map>
#include <string>

namespace llamesh::checkpoint {

/// The weight_map of a model.safetensors.index.json: tensor -> the plain name of a .safetensors
/// file in the same folder. Names with a path, e.g. with a slash, are a user error, as is anything
/// that is not an index. `name` is the file's name for messages. Pure.
std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name);

}  // namespace llamesh::checkpoint
