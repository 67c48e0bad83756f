#pragma once

#include <map>
#include <string>

namespace llamesh::checkpoint {

/// The weight_map of a model.safetensors.index.json: tensor -> the plain name of a .safetensors
/// file beside it. Names that lead anywhere else, e.g. with a slash, are a user error, as is
/// everything that is no index. `name` stands for the file in messages. Pure.
std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name);

}  // namespace llamesh::checkpoint
