#pragma once

#include <cstdint>
#include <string>

#include "app/commands.hpp"

namespace llamesh::app {

/// Makes a Hugging Face folder out of a checkpoint, or a checkpoint of step 0 out of such a folder.
/// One process will do; under mpirun all ranks share the work.
int convert(const ConvertArguments& arguments);

/// "5GB", "500MB", "2GiB", "4096" in bytes, as transformers reads them. Throws a user error for
/// anything else.
std::int64_t bytes_of_size(const std::string& text);

}  // namespace llamesh::app
