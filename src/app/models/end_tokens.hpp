#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/data_options.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {

/// Returns the ids that end a model's text, each once: the tokenizer's EOS first, then eos_token_id
/// in generation_config.json or config.json of the Hugging Face folder `hf` (empty: none), then the
/// token that ends an answer in the chat template of its data. Throws a user error if a file in the
/// folder cannot be understood.
std::vector<std::int32_t> end_tokens(const tokenizer::Tokenizer& tokenizer,
                                     const data::DataOptions& data, const std::string& hf);

}  // namespace llamesh::app
