#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace llamesh {

/// Parses a JSON text that may be damaged or hostile. Throws a user error that begins with `name`
/// where it is malformed, holds a NUL (which the library takes for the end of the text), or is
/// nested more than 32 deep (the library copies and prints values by recursion).
nlohmann::json parse_json(std::string_view text, std::string_view name);

/// A value that is an integer of [least, most], else a user error; the library would also accept
/// 1.5 and true, and truncate a number that does not fit.
std::int64_t to_integer(const nlohmann::json& value, std::int64_t least,
                        std::int64_t most = std::numeric_limits<std::int64_t>::max());

}  // namespace llamesh
