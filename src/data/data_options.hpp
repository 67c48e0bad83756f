#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/enum_names.hpp"

namespace llamesh::data {

/// Format of the data files.
enum class Format : std::uint8_t {
  automatic,  ///< `auto`: from names and first bytes (data_files.hpp), before any file is opened
  text,       ///< plain text, tokenized by the tokenizer
  jsonl,      ///< one document per line: text, an instruction with its answer, or a chat
  tokens,     ///< token ids: llm.c's .bin with its header, or headerless integers
  megatron,   ///< Megatron-LM's .bin and .idx pairs
  random,     ///< no files: ids drawn uniformly from the vocabulary, for measurements
};
inline EnumNames<Format> enum_names(Format) {
  using enum Format;
  return {{{"auto", automatic},
           {"text", text},
           {"jsonl", jsonl},
           {"tokens", tokens},
           {"megatron", megatron},
           {"random", random}}};
}

/// Returns true for text that needs a tokenizer.
constexpr bool is_text(Format format) {
  return format == Format::text || format == Format::jsonl;
}

/// Reading order for the training sequences.
enum class Order : std::uint8_t {
  shuffled,    ///< a new permutation every epoch, a function of seed and epoch only
  sequential,  ///< in file order, starting over after the last
};
inline EnumNames<Order> enum_names(Order) {
  return {{{"shuffled", Order::shuffled}, {"sequential", Order::sequential}}};
}

/// Rule by which documents become training sequences.
enum class Packing : std::uint8_t {
  none,         ///< each document begins a sequence; the rest of its last one is padding
  concatenate,  ///< the stream is cut every sequence_length tokens, wherever documents end
  best_fit,     ///< whole documents fill sequences as far as they fit (PackedSequences)
};
inline EnumNames<Packing> enum_names(Packing) {
  using enum Packing;
  return {{{"none", none}, {"concatenate", concatenate}, {"best_fit", best_fit}}};
}

/// Integer type in headerless token files (little-endian).
enum class TokenDtype : std::uint8_t {
  from_header,  ///< `auto`: the file must have llm.c's header, which defines it
  uint16,
  uint32,
};
inline EnumNames<TokenDtype> enum_names(TokenDtype) {
  using enum TokenDtype;
  return {{{"auto", from_header}, {"uint16", uint16}, {"uint32", uint32}}};
}

/// Form in which a conversation becomes text (chat_template.hpp). A name ends in the model's
/// version if its developer changed the form.
enum class ChatTemplate : std::uint8_t {
  automatic,  ///< `auto`: a built-in one by the text of that in the tokenizer's folder, or `jinja`
  jinja,      ///< the one in the tokenizer's folder, written by Jinja2 (jinja_template.hpp)
  plain,      ///< llamesh's own, which needs no special token but EOS
  llama2,
  llama3,
  llama3_1,  ///< llama3 with a system message that begins with two dates
  chatml,    ///< without a system message of its own
  qwen2,     ///< chatml; adds a system message if there is none
  qwen2_5,   ///< the same with another message
  smollm2,   ///< the same with another message
  mistral_v0,
  mistral_v1,
  mistral_v3,
  zephyr,
};
/// Returns `auto` and the templates' names.
EnumNames<ChatTemplate> enum_names(ChatTemplate);

/// Assistant turns of a conversation that are in the loss.
enum class LossOn : std::uint8_t {
  assistant,       ///< all of them
  last_assistant,  ///< the last one
  all,             ///< everything, also the prompts
};
inline EnumNames<LossOn> enum_names(LossOn) {
  using enum LossOn;
  return {{{"assistant", assistant}, {"last_assistant", last_assistant}, {"all", all}}};
}

/// What to do with messages that have reasoning in a field of their own, which no template writes.
enum class Reasoning : std::uint8_t { refuse, drop };
inline EnumNames<Reasoning> enum_names(Reasoning) {
  return {{{"refuse", Reasoning::refuse}, {"drop", Reasoning::drop}}};
}

/// Fields' names in JSON records where they differ from those in jsonl.hpp; empty: they do not.
struct RecordColumns {
  std::string text = {}, instruction = {}, input = {}, output = {}, prompt = {}, completion = {},
              messages = {}, chosen = {}, rejected = {};
  bool operator==(const RecordColumns&) const = default;
};
struct RecordColumn {
  const char* name;  ///< in input files
  std::string RecordColumns::*member;
};
inline constexpr RecordColumn record_columns[] = {
    {"text", &RecordColumns::text},         {"instruction", &RecordColumns::instruction},
    {"input", &RecordColumns::input},       {"output", &RecordColumns::output},
    {"prompt", &RecordColumns::prompt},     {"completion", &RecordColumns::completion},
    {"messages", &RecordColumns::messages}, {"chosen", &RecordColumns::chosen},
    {"rejected", &RecordColumns::rejected}};

/// The Jinja template with which a run has written its conversations.
struct RecordedTemplate {
  std::string file;        ///< the run's copy, which may be gone
  std::uint64_t hash = 0;  ///< hash_of its text
};

/// Files that are read as one stream.
struct SourceOptions {
  std::vector<std::string> files;
  double weight = 1;  ///< how often an epoch shows each sequence
};

inline constexpr double largest_weight = 1e6;

/// Options under the inputs' `data:` key.
struct DataOptions {
  std::vector<std::string> train;  ///< files, read as one stream in this order
  std::vector<SourceOptions>
      sources;  ///< instead of `train`: sequences never cross from one source into another
  std::vector<std::string> validation;  ///< empty: no validation
  Format format = Format::text;
  std::string tokenizer = "byte";  ///< for text and JSONL: a name for tokenizer::open_tokenizer
  ChatTemplate chat_template = ChatTemplate::automatic;  ///< for conversations in JSONL
  LossOn loss_on = LossOn::assistant;                    ///< for instructions and conversations
  Reasoning reasoning = Reasoning::refuse;  ///< for conversations; changes no token that is read
  RecordColumns columns = {};               ///< in JSONL
  std::int64_t sequence_length = 512;       ///< tokens
  Order order = Order::shuffled;
  TokenDtype token_dtype = TokenDtype::from_header;
  Packing packing = Packing::concatenate;  ///< of training data
  bool document_mask = false;              ///< a token only sees its own document
  std::int64_t eos_token = -1;             ///< for token files: ends a document; -1: not given
  bool pairs = false;      ///< records are document pairs (pair_records.hpp), each in one
                           ///< sequence; set from train.objective, not a key
  std::uint64_t seed = 0;  ///< for random tokens; set from run.seed, not a key
  /// With ChatTemplate::jinja, in place of the template in the tokenizer's folder, which may have
  /// changed since a model was trained; set from its checkpoint, not a key.
  std::optional<RecordedTemplate> recorded_template = {};

  /// Returns `sources`, or `train` as the only one; random tokens are one source for any names.
  /// Empty if neither names a file.
  std::vector<SourceOptions> training_sources() const {
    if (format == Format::random) return {{}};
    if (!sources.empty() || train.empty()) return sources;
    return {{train}};
  }
  /// Returns true if training sequences are made from documents. Random tokens have none.
  bool packs_documents() const {
    return format != Format::random && packing != Packing::concatenate;
  }
};

}  // namespace llamesh::data
