#pragma once

#include <string>
#include <string_view>

namespace llamesh::config {

/// Returns a hint for another program's key: "; did you mean 'optimizer.lr'?" for learning_rate, by
/// the key's last part or the whole key. Empty if there is none.
std::string hint_for_key(std::string_view key);

/// Returns our word for another program's value: bf16 for bfloat16. Empty if there is none.
std::string_view value_for(std::string_view theirs);

}  // namespace llamesh::config
