#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh::data {

/// What the data files hold.
enum class Format : std::uint8_t {
  automatic,  ///< `auto`: by names and first bytes (file_format.hpp), before any file is opened
  text,       ///< plain text, cut into tokens by the tokenizer
  jsonl,      ///< a document a line: text, an instruction with its answer, or a chat
  tokens,     ///< token ids: llm.c's .bin with its header, or headerless integers
  megatron,   ///< Megatron-LM's pairs of .bin and .idx
  random,     ///< no files: ids drawn uniformly from the vocabulary, for measurements
};

/// Text that needs a tokenizer.
constexpr bool is_text(Format format) {
  return format == Format::text || format == Format::jsonl;
}

/// The order in which the sequences of the training data are read.
enum class Order : std::uint8_t {
  shuffled,    ///< a new permutation every epoch, a function of seed and epoch only
  sequential,  ///< in file order, starting again after the last
};

/// The integers of headerless token files (little-endian).
enum class TokenDtype : std::uint8_t {
  from_header,  ///< `auto`: the file must have llm.c's header, which says it
  uint16,
  uint32,
};

/// Files that are read as one stream.
struct SourceOptions {
  std::vector<std::string> files;
  double weight = 1;  ///< how often an epoch shows each sequence
};

inline constexpr double largest_weight = 1e6;

/// `data:` of the inputs.
struct DataOptions {
  std::vector<std::string> train;       ///< files, read as one stream in this order
  std::vector<SourceOptions> sources;   ///< instead of `train`: sequences do not cross from one
                                        ///< source into another
  std::vector<std::string> validation;  ///< empty: no validation
  Format format = Format::text;
  std::string tokenizer = "byte";      ///< for text and JSONL: what tokenizer::open_tokenizer takes
  std::int64_t sequence_length = 512;  ///< tokens
  Order order = Order::shuffled;
  TokenDtype token_dtype = TokenDtype::from_header;
  bool document_mask = false;   ///< a token sees its own document only
  std::int64_t eos_token = -1;  ///< of token files: a document ends with it; -1: not said
  std::uint64_t seed = 0;       ///< of random tokens; set from run.seed, not a key

  /// `sources`, or `train` as the only one; random tokens are one source for any names. Empty
  /// where neither names a file.
  std::vector<SourceOptions> training_sources() const {
    if (format == Format::random) return {{}};
    if (!sources.empty() || train.empty()) return sources;
    return {{train}};
  }
  bool has_validation() const { return format == Format::random || !validation.empty(); }
};

}  // namespace llamesh::data
