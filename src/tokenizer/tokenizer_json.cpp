#include "tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "tokenizer/json_object.hpp"

namespace llamesh::tokenizer {
namespace {

using nlohmann::json;

void read_vocabulary(const JsonObject& model, TokenizerFile& file) {
  const JsonObject vocab = model.object("vocab");
  const json& tokens = model.need("vocab");
  file.vocabulary.reserve(tokens.size());
  for (const auto& item : tokens.items())
    file.vocabulary.emplace(item.key(), to_id(vocab.at(shown(item.key())), item.value()));
}

/// Returns the two parts of a merge: "a b" or ["a", "b"].
std::array<std::string, 2> parts_of(const std::string& where, const json& merge) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    validate(space != text.npos && text.find(' ', space + 1) == text.npos,
             "{}: '{}' is not two tokens with a space between them", where, shown(text));
    return {text.substr(0, space), text.substr(space + 1)};
  }
  validate(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
           "{} is neither a text nor a pair of texts", where);
  return {merge[0].get<std::string>(), merge[1].get<std::string>()};
}

void read_merges(const JsonObject& model, TokenizerFile& file) {
  const auto id_of = [&](const std::string& where, const std::string& token) {
    const auto found = file.vocabulary.find(token);
    validate(found != file.vocabulary.end(), "{}: the token '{}' is not in the vocabulary", where,
             shown(token));
    return found->second;
  };
  const auto& merges = model.array("merges");
  file.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", model.at("merges"), i);
    const auto [left, right] = parts_of(where, merges[i]);
    file.merges.push_back({id_of(where, left), id_of(where, right), id_of(where, left + right)});
  }
}

void read_model(const JsonObject& model, TokenizerFile& file) {
  const std::string type = model.find("type") != nullptr ? model.type() : "BPE";
  validate(type == "BPE", "{}: a model of type '{}' is not supported, only BPE", model.where(),
           shown(type));
  model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const json* dropout = model.find("dropout"); dropout == nullptr || *dropout != 0.0)
    model.refuse_if_set({"dropout"});
  model.refuse_if_set({"continuing_subword_prefix", "end_of_word_suffix"});
  // unk_token and fuse_unk have no effect: every byte has a token, which is checked later.
  const bool byte_fallback = model.flag("byte_fallback", false);
  validate(file.byte_encoding == ByteEncoding::byte_level || byte_fallback,
           "{}: BPE without ByteLevel needs byte_fallback", model.where());
  file.ignore_merges = model.flag("ignore_merges", false);
  read_vocabulary(model, file);
  read_merges(model, file);
}

void read_added_tokens(const JsonObject& root, TokenizerFile& file) {
  if (root.find("added_tokens") == nullptr) return;
  const auto& tokens = root.array("added_tokens");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const JsonObject token(fmt::format("{}[{}]", root.at("added_tokens"), i), tokens[i]);
    token.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    token.refuse_if_set({"single_word"});
    AddedToken added{token.id("id"),
                     token.text("content"),
                     token.flag("lstrip", false),
                     token.flag("rstrip", false),
                     token.flag("normalized", false),
                     token.flag("special", false)};
    const bool text_is_changed = file.byte_encoding == ByteEncoding::byte_fallback || file.to_nfc;
    validate(!(added.normalized && text_is_changed),
             "{}: '{}' with 'normalized: true' together with a normalizer is not supported; where "
             "there is a tokenizer.model, name that file",
             token.where(), shown(added.content));
    const auto known = file.vocabulary.find(added.content);
    validate(known == file.vocabulary.end() || known->second == added.id,
             "{}: '{}' has id {} here, but {} in model.vocab", token.where(), shown(added.content),
             added.id, known == file.vocabulary.end() ? 0 : known->second);
    if (!added.content.empty()) file.added.push_back(std::move(added));
  }
}

/// Checks that ids are unique, and dense enough for a table.
void check_ids(const std::string& name, const TokenizerFile& file) {
  const std::size_t limit = 2 * (file.vocabulary.size() + file.added.size()) + 65536;
  std::vector<const std::string*> owners(limit, nullptr);
  const auto claim = [&](const std::string& token, std::int32_t id) {
    validate(static_cast<std::size_t>(id) < limit,
             "{}: the token '{}' has id {}, far more than there are tokens", name, shown(token),
             id);
    const std::string*& owner = owners[static_cast<std::size_t>(id)];
    validate(owner == nullptr || *owner == token, "{}: '{}' and '{}' have the same id {}", name,
             shown(owner == nullptr ? "" : *owner), shown(token), id);
    owner = &token;
  };
  for (const auto& [token, id] : file.vocabulary) claim(token, id);
  for (const auto& token : file.added) claim(token.content, token.id);
}

/// Returns a token's content from tokenizer_config.json: a text or an object.
std::optional<std::string> token_text(const JsonObject& config, std::string_view key) {
  const json* token = config.find(key);
  if (token == nullptr) return std::nullopt;
  return token->is_object() ? config.object(key).text("content") : config.text(key);
}

}  // namespace

TokenizerFile parse_tokenizer_json(const std::string& name, std::string_view text) {
  const json parsed = parse_json(text, name);
  const JsonObject root(name, parsed);
  // truncation and padding concern batches, which are made elsewhere.
  root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  TokenizerFile file;
  read_text_steps(root, file);
  read_model(root.object("model"), file);
  read_added_tokens(root, file);
  read_post_processor(root, file);
  check_ids(name, file);
  return file;
}

TokenizerConfig parse_tokenizer_config(const std::string& name, std::string_view text) {
  if (text.empty()) return {};
  const json parsed = parse_json(text, name);
  const JsonObject config(name, parsed);
  TokenizerConfig result{token_text(config, "bos_token"), token_text(config, "eos_token"), {}};
  if (config.find("add_bos_token") != nullptr) result.add_bos = config.flag("add_bos_token");
  return result;
}

std::string read_adjacent_config(const std::string& tokenizer_path) {
  const auto path = std::filesystem::path(tokenizer_path).replace_filename("tokenizer_config.json");
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_tokenizer_file(path.string()) : "";
}

std::string read_tokenizer_file(const std::string& path) {
  std::string text = read_file(path, 256 << 20);
  validate(!text.empty(), "tokenizer file '{}' is empty", path);
  return text;
}

}  // namespace llamesh::tokenizer
