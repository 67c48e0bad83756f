#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace llamesh {

/// Parses untrusted JSON and keeps the order of keys: one object, at most 32 levels deep, no
/// duplicate keys, at most 20000 keys per object. Anything else is a one-line user error; `name` is
/// the file's name in messages.
nlohmann::ordered_json parse_json_object(const std::string& text, const std::string& name);

}  // namespace llamesh
