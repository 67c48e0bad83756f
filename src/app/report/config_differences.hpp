#pragma once

#include <string>
#include <vector>

namespace llamesh::app {

/// A key whose value is not the same in all of several config.yaml.
struct ConfigDifference {
  std::string key;                  ///< "optimizer.lr"
  std::vector<std::string> values;  ///< one for each; empty: it has no such key
};

/// In the order of the keys' names, without the run's name and folder. A text that is no YAML map
/// has no keys.
std::vector<ConfigDifference> config_differences(const std::vector<std::string>& configs);

}  // namespace llamesh::app
