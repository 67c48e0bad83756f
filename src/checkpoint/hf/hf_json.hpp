#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace llamesh::checkpoint {

/// Parses untrusted JSON: one object, at most 32 levels deep, no duplicate keys, at most 20000 keys
/// per object. Anything else is a one-line user error; `name` is the file's name in messages.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& name);

}  // namespace llamesh::checkpoint
