#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// The special tokens around the documents of JSON records, and within chats.
struct DocumentTokens {
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;  ///< never empty
  std::int32_t eos;                      ///< after the assistant's turns within a chat
  bool byte_zero;  ///< byte 0, of the byte tokenizer, is the suffix: no document may hold it
};

/// Those of `tokenizer`, which tokenizer::open_tokenizer(name) made. Throws a user error when it
/// has no token to end a document with.
DocumentTokens document_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& name);

/// A document as tokens.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  /// [0] to [1], [2] to [3], ... are masked from the loss. Sorted.
  std::vector<std::int64_t> masked_ranges;
};

/// `where` is for messages. Each segment is encoded separately from the one before it, so that an
/// answer begins with a new token, as it does in generation.
EncodedDocument encode(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                       const Document& document, const LineNumber& where);

/// Takes a document, and the record that it was made from.
using DocumentSink = std::function<void(const EncodedDocument& document, std::string_view record,
                                        const LineNumber& where)>;

/// Parses and encodes the records of a file (JsonRecords) by `threads` threads and hands them to
/// `sink` in order, on the calling thread. The ids do not depend on the number of threads. Memory:
/// some MiB for each thread, more for longer records. The error of the first record that has one is
/// thrown.
void encode_jsonl(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                  std::string_view text, const std::string& path, int threads,
                  const DocumentSink& sink);

}  // namespace llamesh::data
