#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace llamesh::app {

enum class Shell : std::uint8_t { bash, zsh };

/// Returns the script that completes a command line in a shell: commands, options, and the words
/// that an option takes, all as the parser declares them; file names elsewhere.
std::string completion_script(const CLI::App& parser, Shell shell);

}  // namespace llamesh::app
