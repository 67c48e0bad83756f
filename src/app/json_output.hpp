#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace llamesh::app {

using Json = nlohmann::ordered_json;

/// Prints one JSON object on a line, for --json (docs/json.md). Numbers round-trip; non-finite ones
/// become null, and bytes that are not UTF-8 become U+FFFD.
inline void print_json(const Json& object) {
  fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace llamesh::app
