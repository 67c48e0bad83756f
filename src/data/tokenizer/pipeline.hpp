#pragma once

#include "data/tokenizer/json.hpp"
#include "data/tokenizer/object.hpp"

namespace llamesh::data {

/// Reads normalizer, pre_tokenizer and decoder of a tokenizer.json: spelling, prefix_space and
/// patterns.
void read_text_steps(const JsonObject& root, TokenizerFile& file);

/// Reads post_processor: opening and closing. The vocabulary must be there.
void read_post_processor(const JsonObject& root, TokenizerFile& file);

}  // namespace llamesh::data
