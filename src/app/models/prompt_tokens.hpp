#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_options.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {

/// A prompt as the model sees it.
struct PromptTokens {
  std::vector<std::int32_t> ids;
  std::size_t added = 0;  ///< of the ids, those before the prompt's own
  std::string note;       ///< line for the user if they are not the tokenizer's prefix, or empty

  std::span<const std::int32_t> own_ids() const { return std::span(ids).subspan(added); }
};

/// Encodes a prompt with the tokens that come first in training. If the prompt begins like the
/// conversations in the data's chat template, these are the template's BOS, if it has one;
/// otherwise the tokenizer's prefix. A prompt that already begins with the BOS gets no second one.
PromptTokens encode_prompt(const tokenizer::Tokenizer& tokenizer, const data::DataOptions& data,
                           std::string_view prompt);

}  // namespace llamesh::app
