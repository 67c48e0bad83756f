#pragma once

#include "tokenizer/json_object.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {

/// Reads normalizer, pre_tokenizer and decoder from a tokenizer.json into byte_encoding,
/// prefix_space and patterns.
void read_text_steps(const JsonObject& root, TokenizerFile& file);

/// Reads post_processor into prefix_ids and suffix_ids. Requires the vocabulary.
void read_post_processor(const JsonObject& root, TokenizerFile& file);

}  // namespace llamesh::tokenizer
