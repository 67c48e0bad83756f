#pragma once

#include <string>
#include <vector>

namespace llamesh::app {

/// A key whose value differs among several config.yaml files.
struct ConfigDifference {
  std::string key;                  ///< "optimizer.lr"
  std::vector<std::string> values;  ///< one per file; empty: no such key
};

/// Returns the differences in key order, without the run's name and folder. A text that is no YAML
/// map has no keys.
std::vector<ConfigDifference> config_differences(const std::vector<std::string>& configs);

}  // namespace llamesh::app
