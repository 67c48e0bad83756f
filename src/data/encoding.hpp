#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"
#include "data/tokenizer.hpp"

namespace llamesh::data {

/// What parts the documents of JSON records in a tokenizer's ids.
struct DocumentMarks {
  std::vector<std::int32_t> opening;
  std::vector<std::int32_t> closing;  ///< never empty
  std::int32_t eos;                   ///< behind the assistant's turns within a chat
  bool bytes;  ///< of the byte tokenizer: byte 0, which no document may hold therefore
};

/// Those of `tokenizer`, which open_tokenizer(name) made. Throws a user error when it has no token
/// to end a document with.
DocumentMarks document_marks(const Tokenizer& tokenizer, const std::string& name);

/// A document as tokens.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  /// [0] to [1], [2] to [3], ... are the ids that do not count in the loss. Sorted.
  std::vector<std::int64_t> uncounted;
};

/// `where` is for messages. Each segment is encoded apart from the one before it, so that an answer
/// begins with a token of its own, as it does when the model is asked.
EncodedDocument encode(const Tokenizer& tokenizer, const DocumentMarks& marks,
                       const Document& document, const LineNumber& where);

/// Takes a document, and the record that it was made from.
using DocumentSink = std::function<void(const EncodedDocument& document, std::string_view record,
                                        const LineNumber& where)>;

/// Parses and encodes the records of a file (JsonRecords) by `threads` threads and hands them to
/// `sink` in order, on the calling thread. The ids do not depend on the number of threads. Memory:
/// some MiB for each thread, more for longer records. The error of the first record that has one is
/// thrown.
void encode_jsonl(const Tokenizer& tokenizer, const DocumentMarks& marks, std::string_view text,
                  const std::string& path, int threads, const DocumentSink& sink);

}  // namespace llamesh::data
