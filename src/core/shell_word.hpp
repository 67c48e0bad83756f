#pragma once

#include <string>
#include <string_view>

namespace llamesh {

/// Returns the word for a command line in a message: in single quotes if a POSIX shell would not
/// take it as it is.
std::string shell_word(std::string_view word);

}  // namespace llamesh
