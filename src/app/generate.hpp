#pragma once

#include "app/commands.hpp"

namespace llamesh::app {

/// Continues a prompt, token by token, on the terminal. Stops behind the end-of-text token.
int generate(const GenerateArguments& arguments);

}  // namespace llamesh::app
