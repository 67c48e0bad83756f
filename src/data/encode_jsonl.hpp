#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// Special tokens around documents from JSON records, and within chats.
struct DocumentTokens {
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;  ///< never empty
  std::int32_t eos;                      ///< after the assistant's turns in a chat
  bool byte_zero;  ///< byte 0 (byte tokenizer) is the suffix, so no document may contain it
};

/// Returns these tokens for `tokenizer`, as opened by tokenizer::open_tokenizer(name). Throws a
/// user error if it has no token to end a document.
DocumentTokens document_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& name);

/// A document as tokens.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  /// Masked from the loss: tokens [0] to [1], [2] to [3], ... Sorted.
  std::vector<std::int64_t> masked_ranges;
};

/// Encodes a document. Each segment is encoded separately from the one before it, so that an answer
/// begins with a new token, as in generation. `where` is for messages.
EncodedDocument encode(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                       const Document& document, const LineNumber& where);

/// Callback that receives a document and its source record.
using DocumentSink = std::function<void(const EncodedDocument& document, std::string_view record,
                                        const LineNumber& where)>;

/// Parses and encodes a file's records (JsonRecords) with `threads` threads, and passes them to
/// `sink` in order, on the calling thread. The ids do not depend on the thread count. Memory: a few
/// MiB per thread, more for longer records. Throws the error for the first bad record.
void encode_jsonl(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                  std::string_view text, const std::string& path, int threads,
                  const DocumentSink& sink);

}  // namespace llamesh::data
