#include "app/models/end_tokens.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/models/origin.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "data/chat_template.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

/// Returns eos_token_id, a number or a list, of the folder's files; nothing if they have none.
std::vector<std::int64_t> eos_of_folder(const fs::path& folder) {
  for (const auto* name : {"generation_config.json", "config.json"}) {
    const auto file = folder / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;
    const auto json = parse_json_object(read_file(file, std::int64_t{1} << 20U), file.string());
    const auto found = json.find("eos_token_id");
    if (found == json.end()) continue;
    if (found->is_number_integer()) return {found->get<std::int64_t>()};
    std::vector<std::int64_t> ids;
    for (const auto& id : *found)
      if (id.is_number_integer()) ids.push_back(id.get<std::int64_t>());
    return ids;
  }
  return {};
}

}  // namespace

std::vector<std::int32_t> end_tokens(const tokenizer::Tokenizer& tokenizer,
                                     const data::DataOptions& data, const std::string& hf) {
  std::vector<std::int32_t> ids;
  const auto add = [&](std::int64_t id) {
    const bool known = id >= 0 && id < tokenizer.vocab_size();
    if (known && std::ranges::find(ids, id) == ids.end())
      ids.push_back(static_cast<std::int32_t>(id));
  };
  if (const auto eos = tokenizer.eos()) add(*eos);
  if (!hf.empty())
    for (const auto id : eos_of_folder(hf)) add(id);
  if (const auto end = data::turn_end(chat_template_of(data)); !end.empty())
    if (const auto id = tokenizer.special_token(end)) add(*id);
  return ids;
}

}  // namespace llamesh::app
