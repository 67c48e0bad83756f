#pragma once

#include <string>
#include <string_view>

namespace llamesh::config {

/// Hint for a key that another program has: "; did you mean 'optimizer.lr'?" for learning_rate, by
/// the last part of the key or by the whole of it. Empty if there is none.
std::string hint_for_key(std::string_view key);

/// Our word for a value that another program has: bf16 for bfloat16. Empty if there is none.
std::string_view value_for(std::string_view theirs);

}  // namespace llamesh::config
