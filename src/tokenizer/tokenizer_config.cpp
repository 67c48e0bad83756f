#include "tokenizer/tokenizer_config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <unordered_set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "tokenizer/json_object.hpp"

namespace llamesh::tokenizer {
namespace {

using nlohmann::json;

constexpr std::string_view config_file = "tokenizer_config.json";
constexpr std::string_view map_file = "special_tokens_map.json";
constexpr std::string_view added_file = "added_tokens.json";
constexpr std::string_view decoder_key = "added_tokens_decoder";
constexpr std::string_view extra_key = "extra_special_tokens";
constexpr std::string_view additional_key = "additional_special_tokens";  // its name before v5

/// Keys for tokens with a purpose, in the order in which transformers adds those that are new.
constexpr std::array<std::string_view, 7> standard_keys = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

bool is_standard(std::string_view key) {
  return std::ranges::find(standard_keys, key) != standard_keys.end();
}

/// One of the files, with an empty object if there is none.
struct Companion {
  Companion(const std::string& name, std::string_view file, const std::string& text)
      : value(text.empty() ? json::object() : parse_json(text, where_of(name, file))),
        object(where_of(name, file), value) {}
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

  static std::string where_of(const std::string& name, std::string_view file) {
    return std::filesystem::path(name).replace_filename(file).string();
  }
  bool has(std::string_view key) const { return value.contains(key); }

  json value;
  JsonObject object;
};

/// Reads a token that is written with its flags. The defaults are those of the tokenizers library.
AddedToken read_flags(const JsonObject& token, bool special) {
  token.only({"__type", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  token.refuse_if_set({"single_word"});
  special = token.flag("special", special);
  return {-1,
          token.text("content"),
          token.flag("lstrip", false),
          token.flag("rstrip", false),
          token.flag("normalized", !special),
          special};
}

/// Returns a special token that is written without flags.
AddedToken unflagged_token(std::string content) {
  return {-1, std::move(content), false, false, false, true};
}

class ConfigReader {
 public:
  ConfigReader(const std::string& name, const CompanionFiles& files)
      : config_(name, config_file, files.tokenizer_config),
        has_decoder_(config_.object.find(decoder_key) != nullptr),
        map_(name, map_file, has_decoder_ ? "" : files.special_tokens_map),
        added_(name, added_file, has_decoder_ ? "" : files.added_tokens) {}

  /// Reads in the order in which transformers does.
  TokenizerConfig read() {
    check_keys();
    for (const auto key : standard_keys) read_named(key);
    read_new_lists();
    if (has_decoder_)
      read_decoder();
    else
      read_added_tokens();
    read_old_list();
    read_model_specific();
    for (const auto key : standard_keys)
      if (auto content = content_of(key)) result_.named.emplace(key, std::move(*content));
    result_.bos = content_of("bos_token");
    result_.eos = content_of("eos_token");
    if (config_.object.find("add_bos_token") != nullptr)
      result_.add_bos = config_.object.flag("add_bos_token");
    return std::move(result_);
  }

 private:
  void check_keys() const {
    validate(!config_.object.flag("split_special_tokens", false),
             "{}: 'split_special_tokens: true' is not supported; set it to false, and a special "
             "token that is written in a text becomes that token",
             config_.object.where());
    for (const auto& item : map_.value.items())
      validate(
          item.key().ends_with("_token") || item.key() == extra_key || item.key() == additional_key,
          "{}: '{}' is not supported; remove it", map_.object.where(), shown(item.key()));
  }

  const Companion& holder(std::string_view key) const { return map_.has(key) ? map_ : config_; }

  std::optional<std::string> content_of(std::string_view key) const {
    const auto& object = holder(key).object;
    const json* token = object.find(key);
    if (token == nullptr) return std::nullopt;
    return token->is_object() ? object.object(key).text("content") : object.text(key);
  }

  /// Reads a special token: its text, or an object with its flags.
  void read_special(const Companion& file, const std::string& where, const json& value,
                    NamedId id) {
    validate(value.is_string() || value.is_object(), "{} is {} instead of a token", where,
             value.type_name());
    AddedToken token = value.is_string() ? unflagged_token(value.get<std::string>())
                                         : read_flags({where, value}, &file == &map_);
    if (token.content.empty()) return;
    if (value.is_string() || &file == &map_) special_by_text_.insert(token.content);
    result_.special.push_back({where, std::move(token), id});
  }

  void read_named(std::string_view key) {
    const Companion& file = holder(key);
    const json* value = file.object.find(key);
    if (value == nullptr) return;
    const std::size_t before = result_.special.size();
    read_special(file, file.object.at(key), *value, NamedId::assigned);
    if (result_.special.size() > before) result_.special.back().token.special = true;
  }

  /// Reads tokens with a purpose that only some models have, such as image_token. New ones would
  /// get their ids in the order of the keys, which is lost here.
  void read_model_specific() {
    for (const Companion* file : {&config_, &map_})
      for (const auto& [key, value] : file->value.items())
        if (key.ends_with("_token") && !is_standard(key) &&
            (value.is_string() || value.is_object()))
          read_special(*file, file->object.at(shown(key)), value, NamedId::known);
    const json* extra = config_.object.find(extra_key);
    if (extra == nullptr || !extra->is_object()) return;
    for (const auto& [key, value] : extra->items())
      read_special(config_, fmt::format("{}.{}", config_.object.at(extra_key), shown(key)), value,
                   NamedId::known);
  }

  void read_list(const Companion& file, std::string_view key) {
    if (file.object.find(key) == nullptr) return;
    const auto& list = file.object.array(key);
    for (std::size_t i = 0; i < list.size(); ++i)
      read_special(file, fmt::format("{}[{}]", file.object.at(key), i), list[i], NamedId::assigned);
  }

  /// Reads the list of special tokens, which special_tokens_map.json extends. In
  /// tokenizer_config.json it may have its old name, or model-specific tokens in its place.
  void read_new_lists() {
    const json* extra = config_.object.find(extra_key);
    if (config_.has(additional_key) && (extra == nullptr || extra->empty())) {
      read_list(config_, additional_key);
      has_list_ = true;
    } else if (extra == nullptr || !extra->is_object()) {
      read_list(config_, extra_key);
      has_list_ = config_.has(extra_key);
    }
    read_list(map_, extra_key);
    has_list_ = has_list_ || map_.has(extra_key);
  }

  /// Reads the list under its old name, which counts if there is none under the new one.
  void read_old_list() {
    if (!has_list_) read_list(holder(additional_key), additional_key);
  }

  void read_decoder() {
    const JsonObject decoder = config_.object.object(decoder_key);
    for (const auto& [key, value] : config_.value.at(std::string(decoder_key)).items()) {
      const std::string where = decoder.at(shown(key));
      NamedToken named{where, read_flags({where, value}, false), NamedId::stated};
      const auto [end, error] =
          std::from_chars(key.data(), key.data() + key.size(), named.token.id);
      validate(error == std::errc() && end == key.data() + key.size() && named.token.id >= 0,
               "{}: '{}' is no token id", decoder.where(), shown(key));
      if (!named.token.content.empty()) result_.added.push_back(std::move(named));
    }
    std::ranges::sort(result_.added, {}, [](const auto& named) { return named.token.id; });
  }

  /// Reads added_tokens.json, from tokens to ids. To transformers a token is special if its text is
  /// among the names before. It does not see it in an object with flags.
  void read_added_tokens() {
    for (const auto& [content, id] : added_.value.items()) {
      if (content.empty()) continue;
      const std::string where = added_.object.at(shown(content));
      const bool special = special_by_text_.contains(content);
      result_.added.push_back({where,
                               {to_id(where, id), content, false, false, !special, special},
                               NamedId::stated,
                               false});
    }
    std::ranges::sort(result_.added, {}, [](const auto& named) { return named.token.id; });
  }

  Companion config_;
  bool has_decoder_;
  Companion map_, added_;
  bool has_list_ = false;
  std::unordered_set<std::string> special_by_text_;
  TokenizerConfig result_;
};

}  // namespace

TokenizerConfig parse_tokenizer_config(const std::string& name, const CompanionFiles& files) {
  return ConfigReader(name, files).read();
}

CompanionFiles read_companion_files(const std::string& tokenizer_path) {
  const auto read = [&](std::string_view file) {
    const auto path = std::filesystem::path(tokenizer_path).replace_filename(file);
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) ? read_tokenizer_file(path.string()) : "";
  };
  return {read(config_file), read(map_file), read(added_file)};
}

std::string read_tokenizer_file(const std::string& path) {
  std::string text = read_file(path, 256 << 20);
  validate(!text.empty(), "tokenizer file '{}' is empty", path);
  return text;
}

}  // namespace llamesh::tokenizer
