#pragma once

#include <string>
#include <string_view>

#include "data/encode_jsonl.hpp"

namespace llamesh::data {

/// Returns a document's text as the model reads it, with marks around what is in the loss. Control
/// characters other than line ends and tabs are written as \xHH, tokens without a text as <ID>.
std::string marked_text(const tokenizer::Tokenizer& tokenizer, const EncodedDocument& document,
                        std::string_view begin = "{+", std::string_view end = "+}");

}  // namespace llamesh::data
