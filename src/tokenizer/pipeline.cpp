#include "tokenizer/tokenizer_json.hpp"

#include <array>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"

namespace llamesh::tokenizer {
namespace {

using nlohmann::json;

constexpr std::string_view space_symbol = "\u2581";

/// Patterns nest by recursion; real tokenizers have up to four.
constexpr std::size_t max_patterns = 16;

[[noreturn]] void refuse(const std::string& where, const std::string& type) {
  fail(ExitCode::bad_input, "{} of type '{}' is not supported", where, shown(type));
}

/// Returns the steps in a Sequence (in list `key`), or the single step in its place.
std::vector<JsonObject> steps_of(const JsonObject& root, std::string_view name,
                                 std::string_view key) {
  if (root.find(name) == nullptr) return {};
  const JsonObject step = root.object(name);
  if (step.type() != "Sequence") return {step};
  step.only({"type", key});
  std::vector<JsonObject> steps;
  for (const json& item : step.array(key))
    steps.emplace_back(fmt::format("{}[{}]", step.at(key), steps.size()), item);
  return steps;
}

/// Reads Qwen's normalizer, NFC, Llama 2's, Prepend U+2581 and Replace " " by U+2581, or Gemma's,
/// which only replaces.
void read_normalizer(const JsonObject& root, TokenizerFile& file) {
  bool replaces_space = false;
  for (const JsonObject& step : steps_of(root, "normalizer", "normalizers")) {
    const std::string type = step.type();
    if (type == "Prepend") {
      step.only({"type", "prepend"});
      validate(step.text("prepend") == space_symbol, "{}: only '{}' is supported",
               step.at("prepend"), space_symbol);
      validate(!replaces_space, "{}: Prepend after Replace is not supported", step.where());
      file.prefix_space = PrefixSpace::always;
    } else if (type == "Replace") {
      step.only({"type", "pattern", "content"});
      const JsonObject pattern = step.object("pattern");
      pattern.only({"String"});
      validate(pattern.text("String") == " " && step.text("content") == space_symbol,
               "{}: Replace other than of ' ' by '{}' is not supported", step.where(),
               space_symbol);
      replaces_space = true;
    } else if (type == "NFC") {
      step.only({"type"});
      file.to_nfc = true;
    } else {
      refuse(step.where(), type);
    }
  }
  validate(replaces_space || file.prefix_space == PrefixSpace::never,
           "{}: Prepend without Replace is not supported", root.at("normalizer"));
  validate(!replaces_space || !file.to_nfc, "{}: NFC together with Replace is not supported",
           root.at("normalizer"));
  if (replaces_space) file.byte_encoding = ByteEncoding::byte_fallback;
}

void read_metaspace(const JsonObject& step, TokenizerFile& file) {
  step.only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  validate(step.text("replacement") == space_symbol, "{}: only '{}' is supported",
           step.at("replacement"), space_symbol);
  validate(!step.flag("split", true), "{}: Metaspace with 'split: true' is not supported",
           step.where());
  const std::string scheme = step.text("prepend_scheme");
  if (scheme == "always")
    file.prefix_space = PrefixSpace::unless_space;
  else if (scheme == "first")
    file.prefix_space = PrefixSpace::only_first;
  else
    validate(scheme == "never", "{}: '{}' is not supported", step.at("prepend_scheme"),
             shown(scheme));
  file.byte_encoding = ByteEncoding::byte_fallback;
}

SplitBehavior read_behavior(const JsonObject& step) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> behaviors = {
      {{"Removed", SplitBehavior::removed},
       {"Isolated", SplitBehavior::isolated},
       {"MergedWithPrevious", SplitBehavior::merged_with_previous},
       {"MergedWithNext", SplitBehavior::merged_with_next},
       {"Contiguous", SplitBehavior::contiguous}}};
  const std::string name = step.text("behavior");
  for (const auto& [known, behavior] : behaviors)
    if (known == name) return behavior;
  fail(ExitCode::bad_input, "{}: '{}' is not supported", step.at("behavior"), shown(name));
}

void read_split(const JsonObject& step, TokenizerFile& file) {
  step.only({"type", "pattern", "behavior", "invert"});
  const JsonObject pattern = step.object("pattern");
  pattern.only({"Regex", "String"});
  auto regex = pattern.find("Regex") != nullptr ? pattern.text("Regex")
                                                : literal_pattern(pattern.text("String"));
  const SplitBehavior behavior = read_behavior(step);
  const bool invert = step.flag("invert", false);
  // Gemma: the normalizer leaves no space to split at.
  if (file.byte_encoding == ByteEncoding::byte_fallback && regex == " " && !invert) return;
  file.splits.push_back({Pattern(pattern.where(), std::move(regex)), behavior, invert});
}

void read_byte_level(const JsonObject& step, TokenizerFile& file) {
  step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (step.flag("add_prefix_space")) {
    validate(file.splits.empty(),
             "{}: 'add_prefix_space: true' after another step is not supported", step.where());
    file.prefix_space = PrefixSpace::unless_space;
  }
  if (step.flag("use_regex", true))
    file.splits.push_back({Pattern(step.where(), std::string(gpt2_pattern))});
}

void read_pre_tokenizer(const JsonObject& root, TokenizerFile& file) {
  bool byte_level = false;
  for (const JsonObject& step : steps_of(root, "pre_tokenizer", "pretokenizers")) {
    const std::string type = step.type();
    validate(file.splits.size() < max_patterns, "{}: more than {} patterns are not supported",
             root.at("pre_tokenizer"), max_patterns);
    validate(!byte_level, "{}: a step after ByteLevel is not supported", step.where());
    if (type == "ByteLevel") {
      read_byte_level(step, file);
      byte_level = true;
    } else if (type == "Split") {
      read_split(step, file);
    } else if (type == "Digits") {
      step.only({"type", "individual_digits"});
      std::string regex(digit_pattern);
      if (!step.flag("individual_digits")) regex += '+';
      file.splits.push_back({Pattern(step.where(), std::move(regex))});
    } else if (type == "Metaspace") {
      validate(file.byte_encoding == ByteEncoding::byte_level && file.splits.empty(),
               "{}: Metaspace together with other steps is not supported", step.where());
      read_metaspace(step, file);
    } else {
      refuse(step.where(), type);
    }
  }
  const bool characters = file.byte_encoding == ByteEncoding::byte_fallback;
  validate(byte_level != characters && (byte_level || file.splits.empty()),
           "{}: only ByteLevel with patterns before it, or the normalizer of Llama 2 or Gemma or "
           "Metaspace alone, are supported",
           root.at("pre_tokenizer"));
}

/// Checks for contradictions only: decoding follows from the byte encoding.
void check_decoder(const JsonObject& root, const TokenizerFile& file) {
  for (const JsonObject& step : steps_of(root, "decoder", "decoders")) {
    const std::string type = step.type();
    const bool fits = file.byte_encoding == ByteEncoding::byte_level
                          ? type == "ByteLevel"
                          : type == "Replace" || type == "ByteFallback" || type == "Fuse" ||
                                type == "Strip" || type == "Metaspace";
    if (!fits) refuse(step.where(), type);
  }
}

void read_template(const JsonObject& step, const TokenizerFile& file,
                   std::vector<std::int32_t>& prefix_ids, std::vector<std::int32_t>& suffix_ids) {
  step.only({"type", "single", "pair", "special_tokens"});
  bool behind = false;
  for (const json& item : step.array("single")) {
    const JsonObject part(step.at("single"), item);
    part.only({"SpecialToken", "Sequence"});
    if (part.find("Sequence") != nullptr) {
      validate(!behind && part.object("Sequence").text("id") == "A",
               "{}: anything but one sequence A is not supported", part.where());
      behind = true;
      continue;
    }
    const std::string name = part.object("SpecialToken").text("id");
    const JsonObject token = step.object("special_tokens").object(name);
    for (const json& id : token.array("ids"))
      (behind ? suffix_ids : prefix_ids).push_back(to_id(token.at("ids"), id));
  }
  validate(behind, "{}: the sequence A is missing", step.at("single"));
  std::unordered_set<std::int32_t> known;
  for (const auto& added : file.added) known.insert(added.id);
  for (const auto& entry : file.vocabulary) known.insert(entry.second);
  for (const auto* ids : {&prefix_ids, &suffix_ids})
    for (const std::int32_t id : *ids)
      validate(known.contains(id), "{}: there is no token with id {}", step.where(), id);
}

}  // namespace

void read_text_steps(const JsonObject& root, TokenizerFile& file) {
  read_normalizer(root, file);
  read_pre_tokenizer(root, file);
  check_decoder(root, file);
}

void read_post_processor(const JsonObject& root, TokenizerFile& file) {
  for (const JsonObject& step : steps_of(root, "post_processor", "processors")) {
    const std::string type = step.type();
    if (type == "ByteLevel") continue;  // it only shifts offsets
    if (type != "TemplateProcessing") refuse(step.where(), type);
    validate(file.prefix_ids.empty() && file.suffix_ids.empty(),
             "{}: a second template is not supported", step.where());
    read_template(step, file, file.prefix_ids, file.suffix_ids);
  }
}

}  // namespace llamesh::tokenizer
