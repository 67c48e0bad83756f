#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// Form of the documents from JSON records: conversations, and the special tokens around and within
/// documents.
struct DocumentTokens {
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;  ///< never empty
  std::int32_t eos;                      ///< after the assistant's turns in a chat
  bool byte_zero;  ///< byte 0 (byte tokenizer) is the suffix, so no document may contain it
  ConversationOptions conversations = {};
};

/// Returns these tokens for `tokenizer`, as opened by tokenizer::open_tokenizer(options.tokenizer).
/// Throws a user error if it has no token to end a document.
DocumentTokens document_tokens(const tokenizer::Tokenizer& tokenizer, const DataOptions& options);

/// A document as tokens.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  /// Masked from the loss: tokens [0] to [1], [2] to [3], ... Sorted.
  std::vector<std::int64_t> masked_ranges;
  std::string_view form = {};  ///< Document::form
};

/// Encodes a document. Each segment is encoded separately from the one before it, so that an answer
/// begins with a new token, as in generation. Content never becomes a special token. `where` is for
/// messages. Throws a user error if the tokenizer lacks a special token that the document needs.
EncodedDocument encode(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                       const Document& document, const LineNumber& where);

/// Notes for users about the documents in their files.
class JsonlSummary {
 public:
  /// `pairs`: documents are those of pairs.
  explicit JsonlSummary(bool pairs = false) : pairs_(pairs) {}
  void add(const EncodedDocument& document);
  bool empty() const { return documents_ == 0; }
  /// Returns e.g. "3 documents, the first is a conversation; 12 of 40 tokens are in the loss".
  std::string text() const;

 private:
  bool pairs_;
  std::int64_t documents_ = 0, tokens_ = 0, masked_ = 0;
  std::string_view first_form_;
};

/// Callback that receives a document and its source record; a pair's two come one after the other.
using DocumentSink = std::function<void(const EncodedDocument& document, std::string_view record,
                                        const LineNumber& where)>;

/// Parses and encodes a file's records (JsonRecords) with `threads` threads, and passes them to
/// `sink` in order, on the calling thread. The ids do not depend on the thread count. Memory: a few
/// MiB per thread, more for longer records. Throws the error for the first bad record.
void encode_jsonl(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                  std::string_view text, const std::string& path, int threads,
                  const DocumentSink& sink);

}  // namespace llamesh::data
