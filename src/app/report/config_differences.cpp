#include "app/report/page_data.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>

namespace llamesh::app {
namespace {

constexpr int max_groups = 8;  // nesting limit

/// Flattens nested keys. A list counts as one value, on one line.
void flatten(const YAML::Node& node, const std::string& name, int depth,
             std::map<std::string, std::string>& into) {
  if (node.IsMap() && depth < max_groups) {
    for (const auto& entry : node)
      if (entry.first.IsScalar())
        flatten(entry.second, (name.empty() ? "" : name + ".") + entry.first.Scalar(), depth + 1,
                into);
    return;
  }
  YAML::Emitter text;
  text.SetMapFormat(YAML::Flow);
  text.SetSeqFormat(YAML::Flow);
  text << node;
  into[name] = node.IsScalar() ? node.Scalar() : text.c_str();
}

std::map<std::string, std::string> keys_of(const std::string& config) {
  std::map<std::string, std::string> keys;
  try {
    const YAML::Node node = YAML::Load(config);
    if (node.IsMap()) flatten(node, "", 0, keys);
  } catch (const YAML::Exception&) {
    keys.clear();
  }
  return keys;
}

}  // namespace

std::vector<ConfigDifference> config_differences(const std::vector<std::string>& configs) {
  std::map<std::string, std::vector<std::string>> values;
  for (std::size_t i = 0; i < configs.size(); ++i)
    for (const auto& [key, value] : keys_of(configs[i])) {
      values[key].resize(configs.size());
      values[key][i] = value;
    }
  std::vector<ConfigDifference> differences;
  for (const auto& [key, of_runs] : values)
    if (key != "run.name" && key != "run.folder" &&
        std::ranges::any_of(of_runs, [&](const auto& value) { return value != of_runs.front(); }))
      differences.push_back({key, of_runs});
  return differences;
}

}  // namespace llamesh::app
