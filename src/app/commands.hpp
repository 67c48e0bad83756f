#pragma once

#include <string>
#include <vector>

/// The subcommands. Each runs to its end and returns the exit code, or throws an Error that main()
/// prints.
namespace llamesh::app {

struct TrainArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  bool print_config = false;
  bool print_mesh = false;
  bool print_units = false;
  bool check = false;  ///< looks at the nodes (train/preflight.hpp) instead of training
};
int train(const TrainArguments& arguments);

/// Version, commit, compiler and libraries, for --version.
std::string version_text();

}  // namespace llamesh::app
