#include "checkpoint/hf/hf_index.hpp"

#include <algorithm>

#include "checkpoint/hf/safetensors.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace llamesh::checkpoint {
namespace {

/// Returns true for a plain file name: an index may only name files in its own folder.
bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name[0] != '.' &&
         std::ranges::all_of(name, [](char c) {
           const auto code = static_cast<unsigned char>(c);
           return code > 0x20 && code != 0x7f && c != '/' && c != '\\';
         });
}

}  // namespace

std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name) {
  const auto json = parse_json_object(text, name);
  const auto found = json.find("weight_map");
  validate(found != json.end() && found->is_object(), "{}: it has no weight_map", name);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : found->items()) {
    validate(file.is_string() && is_plain_name(file.get_ref<const std::string&>()),
             "{}: weight_map places '{}' in {}, which is not the plain name of a .safetensors file",
             name, shown(tensor), shown(file.dump(-1, ' ', true)));
    files[tensor] = file.get<std::string>();
  }
  validate(!files.empty(), "{}: its weight_map is empty", name);
  return files;
}

}  // namespace llamesh::checkpoint
