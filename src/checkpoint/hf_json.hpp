#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace llamesh::checkpoint {

/// JSON from a stranger: one object, at most 32 levels deep, no key twice, at most 20000
/// keys in an object. Anything else is a user
/// error of one line in which `name` stands for the file.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& name);

/// The text of a regular file of at most `max_bytes`; else a user error that names it.
std::string read_small_file(const std::filesystem::path& path, std::int64_t max_bytes);

}  // namespace llamesh::checkpoint
