#pragma once

#include <map>
#include <string>

namespace llamesh::train {

/// Hashes of the trained weights and their moments as 16 hexadecimal digits: by layer
/// ("model.layers.3"), and by name for parameters outside of the layers.
using StateHashes = std::map<std::string, std::string>;

}  // namespace llamesh::train
