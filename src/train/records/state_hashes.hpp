#pragma once

#include <map>
#include <string>

namespace llamesh::train {

/// The trained weights and their moments, hashed, as 16 hexadecimal digits: by layer
/// ("model.layers.3"), and by name for parameters outside the layers.
using StateHashes = std::map<std::string, std::string>;

}  // namespace llamesh::train
