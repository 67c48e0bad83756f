#pragma once

#include <map>
#include <string>

namespace llamesh::checkpoint {

/// Parses the weight_map in model.safetensors.index.json: tensor -> plain name of a .safetensors
/// file in the same folder. A name with a path, e.g. with a slash, is a user error, and so is
/// anything that is not an index. `name` is the file's name in messages. Pure.
std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name);

}  // namespace llamesh::checkpoint
