#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace llamesh::app {

/// Runs a command to its end and returns the exit code, or throws an Error that main() prints.
using Run = std::function<int()>;

/// Adds a subcommand to a parser: its options, help, examples, and what it runs. If a parsed
/// command line names the subcommand, `chosen` becomes its Run; `chosen` must outlive the parser.
using Declare = void(CLI::App& parser, Run& chosen);

}  // namespace llamesh::app
