#include "tokenizer/huggingface_tokenizer.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "tokenizer/newer_characters.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {
namespace {

constexpr std::uint32_t space_code_point = 0x2581;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_visible_ascii(char c) {
  return c > ' ' && c <= '~';
}

/// Returns the end of a word at `at` that Words describes, or `at` if there is none.
std::size_t end_of_plain_word(std::string_view text, std::size_t at, Words words) {
  if (words == Words::unknown) return at;
  const std::size_t first = at + (text[at] == ' ' ? 1 : 0);
  std::size_t end = first;
  if (words == Words::letters) {
    while (end < text.size() && is_letter(text[end])) ++end;
  } else {
    while (end < text.size() && text[end] >= 'A' && text[end] <= 'Z') ++end;
    while (end < text.size() && text[end] >= 'a' && text[end] <= 'z') ++end;
  }
  const bool ends = end == text.size() || (static_cast<unsigned char>(text[end]) < 0x80 &&
                                           (words == Words::letters || text[end] != '\''));
  return end > first && ends ? end : at;
}

/// Tokens with which chat templates mark turns. Some tokenizer files do not call them special.
constexpr std::array<std::string_view, 7> turn_tokens = {
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "[INST]",       "[/INST]"};

/// Returns true for tokens of `tokenizer` that content must not become.
bool is_control(const AddedToken& token, const Tokenizer& tokenizer) {
  return token.special || token.id == tokenizer.bos() || token.id == tokenizer.eos() ||
         std::ranges::find(turn_tokens, token.content) != turn_tokens.end();
}

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> chosen;
  for (const auto& token : tokens)
    if (token.normalized == normalized) chosen.push_back(token);
  return chosen;
}

std::array<AddedTokens, 2> added_sets(const std::vector<AddedToken>& tokens) {
  return {AddedTokens(select(tokens, false)), AddedTokens(select(tokens, true))};
}

/// Returns the added tokens that content may become.
std::vector<AddedToken> content_tokens(std::vector<AddedToken> tokens, const Tokenizer& tokenizer) {
  std::erase_if(tokens, [&](const auto& token) { return is_control(token, tokenizer); });
  return tokens;
}

}  // namespace

HuggingFaceTokenizer::HuggingFaceTokenizer(const std::string& name, TokenizerFile file,
                                           const TokenizerConfig& config)
    : Tokenizer(make_vocabulary(name, file, config)),
      name_(name),
      file_(std::move(file)),
      merges_(file_.merges),
      added_(added_sets(file_.added)),
      added_in_content_(added_sets(content_tokens(file_.added, *this))) {
  find_symbols();
  if (file_.ignore_merges) {
    for (const auto& [token, id] : file_.vocabulary) whole_words_.emplace(bytes_of(id), id);
    for (const AddedToken& token : file_.added)
      if (is_control(token, *this)) whole_words_.erase(token.content);
  }
  spaces_part_words_ = spaces_part_words();
  find_cuts();
  const auto words = std::ranges::find_if(
      file_.splits, [](const Split& split) { return split.pattern.words() != Words::unknown; });
  piece_step_ = static_cast<std::size_t>(words - file_.splits.begin()) + 1;
}

void HuggingFaceTokenizer::find_symbols() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found =
        file_.vocabulary.find(token_of_byte(file_.byte_encoding, static_cast<std::uint8_t>(byte)));
    byte_ids_[byte] = found == file_.vocabulary.end() ? no_id : found->second;
  }
  if (file_.byte_encoding == ByteEncoding::byte_level) return;
  for (const auto& [token, id] : file_.vocabulary)
    if (!token.empty() && utf8_length(token) == token.size())
      character_ids_.emplace(code_point(token), id);
}

std::int32_t HuggingFaceTokenizer::byte_id(char byte) const {
  const auto value = static_cast<unsigned char>(byte);
  validate(
      byte_ids_[value] != no_id,
      "{}: the vocabulary has no token '{}' for the byte {}, which the text holds; it would be "
      "lost",
      name_, token_of_byte(file_.byte_encoding, value), value);
  return byte_ids_[value];
}

bool HuggingFaceTokenizer::spaces_part_words() const {
  if (file_.byte_encoding == ByteEncoding::byte_level) return false;  // the patterns do it
  const std::string symbol = to_utf8(space_code_point);
  const auto reaches_over = [&](const std::string& token) {
    for (std::size_t at = token.find(symbol, 1); at != token.npos; at = token.find(symbol, at + 1))
      if (at < symbol.size() || token.compare(at - symbol.size(), symbol.size(), symbol) != 0)
        return true;
    return false;
  };
  return std::ranges::none_of(file_.vocabulary,
                              [&](const auto& entry) { return reaches_over(entry.first); });
}

void HuggingFaceTokenizer::find_cuts() {
  const bool byte_level = file_.byte_encoding == ByteEncoding::byte_level;
  for (const AddedToken& token : file_.added) {
    const bool in_words = is_letter(token.content.back()) ||
                          token.content.find(' ') != token.content.npos ||
                          (token.lstrip && is_letter(token.content.front()));
    const bool at_lines =
        token.lstrip || token.rstrip || token.content.find('\n') != token.content.npos;
    if (in_words || (byte_level && at_lines)) return;
  }
  if (!byte_level) {
    cuts_words_ = spaces_part_words_;
    return;
  }
  // A step that keeps words whole cuts between them, whatever the steps behind it do.
  for (const Split& split : file_.splits) {
    if (split.pattern.words() != Words::unknown) {
      cuts_words_ = split.keeps_matches();
      if (cuts_lines_ == Lines::unknown) cuts_lines_ = split.pattern.lines();
      return;
    }
    if (split.behavior != SplitBehavior::isolated) return;
    if (split.pattern.regex() == "[\r\n]")
      cuts_lines_ = Lines::all;
    else if (!split.pattern.leaves_words())
      return;
  }
}

std::size_t HuggingFaceTokenizer::next_cut(std::string_view text, std::size_t from) const {
  if (!cuts_words_) return text.size();
  const auto cuts_line = [&](std::size_t at) {
    if (text[at - 1] != '\n' || !begins_visibly(text.substr(at))) return false;
    if (cuts_lines_ == Lines::after_visible) return at > 1 && is_visible_ascii(text[at - 2]);
    return text[at] != '/' || cuts_lines_ != Lines::all_before_slash;
  };
  for (std::size_t at = std::max<std::size_t>(from, 1); at + 1 < text.size(); ++at) {
    if (text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1])) return at;
    if (cuts_lines_ != Lines::unknown && cuts_line(at)) return at;
  }
  return text.size();
}

std::unique_ptr<HuggingFaceTokenizer::Workspace> HuggingFaceTokenizer::make_workspace() const {
  auto work = std::make_unique<Workspace>();
  for (const Split& split : file_.splits) work->matchers.emplace_back(split.pattern);
  if (piece_step_ < file_.splits.size()) work->pieces.emplace();
  return work;
}

std::optional<std::int32_t> HuggingFaceTokenizer::special_token(std::string_view text) const {
  const auto found = std::ranges::find(file_.added, text, &AddedToken::content);
  if (found == file_.added.end()) return std::nullopt;
  return found->id;
}

std::vector<ControlToken> HuggingFaceTokenizer::control_tokens() const {
  std::vector<AddedToken> added = file_.added;
  std::ranges::sort(added, {}, &AddedToken::id);
  std::vector<ControlToken> tokens;
  for (const AddedToken& token : added)
    if (is_control(token, *this)) tokens.push_back({token.content, true, token.rstrip});
  return tokens;
}

void HuggingFaceTokenizer::encode_chunk(std::string_view text, Chunk chunk,
                                        std::vector<std::int32_t>& ids) const {
  encode_sections(text, chunk, added_, ids);
}

void HuggingFaceTokenizer::encode_content_chunk(std::string_view text, Chunk chunk,
                                                std::vector<std::int32_t>& ids) const {
  encode_sections(text, chunk, added_in_content_, ids);
}

void HuggingFaceTokenizer::encode_sections(std::string_view text, Chunk chunk,
                                           const AddedSets& added,
                                           std::vector<std::int32_t>& ids) const {
  const auto work = workspaces_.acquire([this] { return make_workspace(); });
  Output out{*work, ids};
  const Begin begin = chunk == Chunk::first         ? Begin::document
                      : chunk == Chunk::after_token ? Begin::section
                                                    : Begin::continued;
  encode_section(text, begin, added, out);
}

void HuggingFaceTokenizer::encode_section(std::string_view text, Begin begin,
                                          std::span<const AddedTokens> added, Output& out) const {
  if (added.empty()) return encode_plain(text, begin, out);
  std::size_t at = 0;
  while (const auto match = added.front().find(text, at)) {
    encode_section(text.substr(at, match->begin - at), begin, added.subspan(1), out);
    out.ids.push_back(match->id);
    at = match->end;
    begin = Begin::section;
  }
  encode_section(text.substr(at), begin, added.subspan(1), out);
}

void HuggingFaceTokenizer::encode_plain(std::string_view text, Begin begin, Output& out) const {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) encode_valid(text.substr(0, valid), begin, out);
    text.remove_prefix(valid);
    begin = Begin::continued;
    for (; !text.empty() && utf8_length(text) == 0; text.remove_prefix(1))
      out.ids.push_back(byte_id(text.front()));
  }
}

void HuggingFaceTokenizer::encode_valid(std::string_view text, Begin begin, Output& out) const {
  if (file_.to_nfc && !is_surely_nfc(text)) {
    out.work.normalized = to_nfc(text);
    text = out.work.normalized;
  }
  const bool spaced = text.front() == ' ' || (file_.byte_encoding == ByteEncoding::byte_fallback &&
                                              text.starts_with("\u2581"));
  const bool add_space =
      (file_.prefix_space == PrefixSpace::always && begin != Begin::continued) ||
      (file_.prefix_space == PrefixSpace::unless_space && begin != Begin::continued && !spaced) ||
      (file_.prefix_space == PrefixSpace::only_first && begin == Begin::document && !spaced);
  if (add_space) {
    out.work.with_space.assign(1, ' ');
    out.work.with_space += text;
    text = out.work.with_space;
  }
  out.work.characters = has_newer_characters(text) ? Characters::newer : Characters::older;
  if (file_.byte_encoding == ByteEncoding::byte_level)
    split_text(text, 0, out);
  else
    cut_before_spaces(text, out);
}

void HuggingFaceTokenizer::split_piece(std::string_view piece, std::size_t step,
                                       Output& out) const {
  if (step == file_.splits.size()) return encode_word(piece, out);
  if (step != piece_step_) return split_text(piece, step, out);
  const auto known = out.work.pieces->find(piece);
  if (!known.empty()) {
    out.ids.insert(out.ids.end(), known.begin(), known.end());
    return;
  }
  const std::size_t before = out.ids.size();
  split_text(piece, step, out);
  out.work.pieces->put(piece, std::span(out.ids).subspan(before));
}

void HuggingFaceTokenizer::split_text(std::string_view text, std::size_t step, Output& out) const {
  if (step == file_.splits.size()) return encode_word(text, out);
  const Split& split = file_.splits[step];
  std::size_t piece = 0;
  std::size_t at = 0;
  bool delimiter = false;  // the stretch before `at` is one
  const auto end_piece = [&] {
    const bool removed = split.behavior == SplitBehavior::removed && delimiter;
    if (at > piece && !removed) split_piece(text.substr(piece, at - piece), step + 1, out);
    piece = at;
  };
  const auto add_stretch = [&](std::size_t end, bool is_delimiter) {
    if (end == at) return;
    if (!split.joins(delimiter, is_delimiter)) end_piece();
    delimiter = is_delimiter;
    at = end;
  };
  while (at < text.size()) {
    const std::size_t word = end_of_plain_word(text, at, split.pattern.words());
    const auto match = word > at ? std::optional(Pattern::Matcher::Match{at, word})
                                 : out.work.matchers[step].find(text, at, out.work.characters);
    add_stretch(match ? match->begin : text.size(), split.invert);
    if (match) add_stretch(match->end, !split.invert);
  }
  end_piece();
}

void HuggingFaceTokenizer::cut_before_spaces(std::string_view text, Output& out) const {
  std::size_t begin = 0;
  if (spaces_part_words_)
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (text[at] != ' ' || text[at - 1] == ' ' || text.substr(0, at).ends_with("\u2581"))
        continue;
      encode_word(text.substr(begin, at - begin), out);
      begin = at;
    }
  encode_word(text.substr(begin), out);
}

void HuggingFaceTokenizer::encode_word(std::string_view word, Output& out) const {
  const bool short_word = word.size() <= WordCache::longest;
  if (short_word) {
    const auto known = out.work.words.find(word);
    if (!known.empty()) {
      out.ids.insert(out.ids.end(), known.begin(), known.end());
      return;
    }
  }
  auto& symbols = out.work.symbols;
  find_word(word, symbols);
  out.ids.insert(out.ids.end(), symbols.begin(), symbols.end());
  if (short_word) out.work.words.put(word, symbols);
}

void HuggingFaceTokenizer::find_word(std::string_view word,
                                     std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  if (file_.ignore_merges) {
    const auto found = whole_words_.find(word);
    if (found != whole_words_.end()) {
      symbols.push_back(found->second);
      return;
    }
  }
  append_symbols(word, symbols);
  merges_.apply(symbols);
}

void HuggingFaceTokenizer::append_symbols(std::string_view word,
                                          std::vector<std::int32_t>& symbols) const {
  if (file_.byte_encoding == ByteEncoding::byte_level) {
    for (const char c : word) symbols.push_back(byte_id(c));
    return;
  }
  const std::string utf8_space = to_utf8(space_code_point);
  while (!word.empty()) {
    const std::size_t length = utf8_length(word);
    const bool space = word.front() == ' ';
    const auto found =
        character_ids_.find(space ? space_code_point : code_point(word.substr(0, length)));
    if (found != character_ids_.end())
      symbols.push_back(found->second);
    else
      for (const char c : space ? std::string_view(utf8_space) : word.substr(0, length))
        symbols.push_back(byte_id(c));
    word.remove_prefix(length);
  }
}

std::shared_ptr<const Tokenizer> parse_hugging_face(const std::string& name, std::string_view json,
                                                    const CompanionFiles& companions) {
  const auto config = parse_tokenizer_config(name, companions);
  return std::make_shared<const HuggingFaceTokenizer>(
      name, parse_tokenizer_json(name, json, config), config);
}

std::shared_ptr<const Tokenizer> open_hugging_face(const std::string& path) {
  return parse_hugging_face(path, read_tokenizer_file(path), read_companion_files(path));
}

}  // namespace llamesh::tokenizer
