#include "app/models/origin.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/tree.hpp"
#include "core/enum_names.hpp"
#include "data/chat_template.hpp"
#include "data/fingerprint.hpp"

namespace llamesh::app {
namespace {

/// Returns the scalar at section.key, or "" if it is missing.
std::string value_of(const config::Node& root, std::string_view section, std::string_view key) {
  const auto* const found = root.find(section);
  const auto* const value = found == nullptr ? nullptr : found->find(key);
  return value == nullptr ? "" : value->scalar;
}

}  // namespace

Origin origin_of(const std::string& config) {
  const auto root = config::parse_tree(config, "config");
  Origin origin;
  origin.hf = value_of(root, "model", "hf");
  if (const auto name = value_of(root, "data", "tokenizer"); !name.empty())
    origin.data.tokenizer = name;
  const auto format = value_of(root, "data", "format");
  const bool text = format == "text" || format == "jsonl";
  origin.data.format = text ? data::Format::text : data::Format::tokens;
  // A checkpoint of a Hugging Face folder has no data. Versions without the key knew no other form.
  const auto usual =
      root.find("data") == nullptr ? data::ChatTemplate::automatic : data::ChatTemplate::plain;
  origin.data.chat_template =
      value_of_name<data::ChatTemplate>(value_of(root, "data", "chat_template")).value_or(usual);
  origin.data.loss_on =
      value_of_name<data::LossOn>(value_of(root, "data", "loss_on")).value_or(origin.data.loss_on);
  origin.data.reasoning = value_of_name<data::Reasoning>(value_of(root, "data", "reasoning"))
                              .value_or(origin.data.reasoning);
  if (const auto* const data = root.find("data"))
    for (const auto& [name, member] : data::record_columns)
      origin.data.columns.*member = value_of(*data, "columns", name);
  origin.data.document_mask = value_of(root, "data", "document_mask") == "true";
  if (const auto id = value_of(root, "data", "eos_token"); !id.empty())
    origin.data.eos_token = std::strtoll(id.c_str(), nullptr, 10);
  if (const auto length = value_of(root, "data", "sequence_length"); !length.empty())
    origin.data.sequence_length =
        std::max<std::int64_t>(1, std::strtoll(length.c_str(), nullptr, 10));
  return origin;
}

Origin origin_of(const std::filesystem::path& checkpoint, const checkpoint::TrainState& progress) {
  auto origin = origin_of(progress.config);
  const auto then = data::parse_fingerprint(progress.data);
  const auto root = config::parse_tree(progress.config, "config");
  const bool had_conversations = value_of(root, "data", "format") == "jsonl";
  if (!then || !then->data_order || !had_conversations) return origin;
  const auto run = std::filesystem::absolute(checkpoint).parent_path().parent_path();
  data::use_recorded_template(origin.data, then->data_order->chat_template,
                              (run / "chat_template.jinja").string());
  return origin;
}

std::string tokenizer_of(const Origin& origin) {
  const bool named = origin.data.tokenizer != "byte" || data::is_text(origin.data.format);
  return named || origin.hf.empty() ? origin.data.tokenizer : origin.hf;
}

data::ChatTemplate chat_template_of(const data::DataOptions& data) {
  const bool by_folder = data.chat_template == data::ChatTemplate::automatic ||
                         data.chat_template == data::ChatTemplate::jinja;
  if (by_folder && !has_tokenizer(data.tokenizer)) return data::ChatTemplate::automatic;
  return data::conversation_options(data).chat_template;
}

bool has_tokenizer(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  return fs::is_directory(path)
             ? fs::exists(path / "tokenizer.json") || fs::exists(path / "tokenizer.model")
             : fs::exists(path);
}

}  // namespace llamesh::app
