#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace llamesh::checkpoint {

/// Parses untrusted JSON: one object, at most 32 levels deep, no key twice, at most 20000 keys in
/// an object. Anything else is a user error of one line; `name` is the file's name for messages.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& name);

}  // namespace llamesh::checkpoint
