#include "tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "core/error.hpp"
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
           "expected {} to be a string or a pair of strings", where);
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

/// Adds tokens to a file's as the tokenizers library does (added_vocabulary.rs, add_tokens): those
/// that the tokenizer has keep their ids and take the new flags, and others get the next free ids.
class TokenAdder {
 public:
  explicit TokenAdder(TokenizerFile& file)
      : file_(file), next_id_(static_cast<std::int32_t>(file.vocabulary.size())) {
    for (std::size_t i = 0; i < file.added.size(); ++i) {
      indices_.emplace(file.added[i].content, i);
      next_id_ = std::max(next_id_, file.added[i].id + 1);
    }
  }

  /// Returns null if the text is not an added token.
  const AddedToken* find_added(const std::string& content) const {
    const auto index = indices_.find(content);
    return index == indices_.end() ? nullptr : &file_.added[index->second];
  }
  /// Returns the id of a token that the tokenizer has.
  std::optional<std::int32_t> find(const std::string& content) const {
    if (const AddedToken* added = find_added(content)) return added->id;
    const auto known = file_.vocabulary.find(content);
    return known == file_.vocabulary.end() ? std::nullopt : std::optional(known->second);
  }
  std::int32_t id_of(const std::string& content) const { return find(content).value_or(next_id_); }
  /// Throws a user error unless the library gives the token its stated id.
  void check_id(const std::string& where, const AddedToken& token) const {
    const auto known = find(token.content);
    validate(token.id == known.value_or(next_id_),
             "{}: '{}' has id {} here, but the tokenizers library gives it {}, {}; correct the id",
             where, shown(token.content), token.id, known.value_or(next_id_),
             known ? "its id in the tokenizer" : "the next free id");
  }
  void add(const std::string& where, AddedToken token) {
    const bool text_is_changed = file_.byte_encoding == ByteEncoding::byte_fallback || file_.to_nfc;
    validate(!(token.normalized && text_is_changed),
             "{}: '{}' with 'normalized: true' together with a normalizer is not supported; where "
             "there is a tokenizer.model, name that file",
             where, shown(token.content));
    if (!find(token.content)) ++next_id_;
    const auto [index, is_new] = indices_.emplace(token.content, file_.added.size());
    if (is_new)
      file_.added.push_back(std::move(token));
    else
      file_.added[index->second] = std::move(token);
  }

 private:
  TokenizerFile& file_;
  std::int32_t next_id_;
  std::unordered_map<std::string, std::size_t> indices_;
};

void read_added_tokens(const JsonObject& root, TokenizerFile& file) {
  if (root.find("added_tokens") == nullptr) return;
  const auto& tokens = root.array("added_tokens");
  TokenAdder adder(file);
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
    if (added.content.empty()) continue;
    adder.check_id(token.where(), added);
    adder.add(token.where(), std::move(added));
  }
}

/// Adds the tokens that are named beside the file, as transformers 5 does (TokenizersBackend):
/// first those with stated ids, then the special ones that are not added tokens yet.
void add_named_tokens(const TokenizerConfig& config, TokenizerFile& file) {
  TokenAdder adder(file);
  std::unordered_set<std::string> special;
  for (const NamedToken& named : config.special) special.insert(named.token.content);
  for (const auto& [where, named, id, has_flags] : config.added) {
    adder.check_id(where, named);
    const bool known = adder.find_added(named.content) != nullptr;
    if (known && !has_flags) continue;
    AddedToken token = named;
    if (!known && special.contains(token.content)) token.special = true;
    adder.add(where, std::move(token));
  }
  const TokenAdder before = adder;
  for (const auto& [where, named, id, has_flags] : config.special) {
    if (before.find_added(named.content) != nullptr) continue;
    validate(id == NamedId::assigned,
             "{}: '{}' is not among the added tokens in tokenizer.json; list it there, or with its "
             "id in added_tokens_decoder in tokenizer_config.json",
             where, shown(named.content));
    AddedToken token = named;
    token.id = adder.id_of(named.content);
    const AddedToken* other = adder.find_added(named.content);
    validate(other == nullptr || *other == token,
             "{}: '{}' has other flags than where it is named before; write them alike", where,
             shown(named.content));
    adder.add(where, std::move(token));
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

}  // namespace

TokenizerFile parse_tokenizer_json(const std::string& name, std::string_view text,
                                   const TokenizerConfig& config) {
  const json parsed = parse_json(text, name);
  const JsonObject root(name, parsed);
  // truncation and padding concern batches, which are made elsewhere.
  root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  TokenizerFile file;
  read_text_steps(root, file);
  read_model(root.object("model"), file);
  read_added_tokens(root, file);
  check_ids(name, file);
  add_named_tokens(config, file);
  check_ids(name, file);  // the next free id may lie in the vocabulary, if that has holes
  read_post_processor(root, file);
  return file;
}

}  // namespace llamesh::tokenizer
