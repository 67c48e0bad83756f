#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace llamesh {

/// Parses untrusted JSON and keeps the order of keys: one object, at most 32 levels deep, no
/// duplicate keys, at most 20000 keys per object. Anything else is a one-line user error; `name` is
/// the file's name in messages.
nlohmann::ordered_json parse_json_object(const std::string& text, const std::string& name);

/// Parses JSON that may be damaged or hostile. Throws a user error that begins with `name` if it is
/// malformed, contains a NUL (which the library treats as the end), or is nested more than 32 deep
/// (the library copies and prints recursively).
nlohmann::json parse_json(std::string_view text, std::string_view name);

/// Returns what is wrong with a string in JSON `at` a place, "byte 12"; empty if the library
/// refuses the text for its syntax.
std::string wrong_string(const nlohmann::json::exception& error, std::string_view at);

/// Returns an integer in [least, most], otherwise throws a user error. The library alone would
/// accept 1.5 and true, and truncate a number that does not fit.
std::int64_t to_integer(const nlohmann::json& value, std::int64_t least,
                        std::int64_t most = std::numeric_limits<std::int64_t>::max());

}  // namespace llamesh
