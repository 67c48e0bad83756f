#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_stream.hpp"

namespace llamesh::data {

/// A document, or a part of one, in a sequence.
struct PackedPiece {
  std::int64_t begin;   ///< its first token in the stream
  std::int64_t tokens;  ///< at least 2: a prediction needs two
};

/// Sequences of T inputs made from whole documents in a stream. A sequence holds pieces of up to
/// T + 1 tokens together; each piece's tokens but the first are targets. A document with more than
/// T + 1 tokens is split into pieces of T + 1 tokens that share one token with the piece before, so
/// every prediction within a document is in one sequence, and none crosses documents. Documents
/// with one token have nothing to predict and are left out. The two documents of a pair are one
/// piece, and count as one; they fit (TokenizedText).
///
/// best_fit: the longest pieces first, each into the sequence that it fills best; the first of
/// equal ones goes first (best-fit decreasing, as in Ding et al., "Fewer Truncations Improve
/// Language Modeling", ICML 2024). none: each piece is a sequence. A function of the documents'
/// lengths and T alone. Sequences are numbered by their first token.
class PackedSequences {
 public:
  /// Finds the stream's documents. Takes 24 bytes of memory per piece, and reads token files to
  /// their end, and the loss masks of long documents up to their first target. `packing` is not
  /// concatenate.
  PackedSequences(const TokenStream& stream, Packing packing, std::int64_t sequence_length);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  /// Returns a sequence's pieces in the stream's order.
  std::span<const PackedPiece> pieces(std::int64_t sequence) const;
  std::int64_t documents() const { return documents_; }
  /// Returns the documents with more than T + 1 tokens.
  std::int64_t split_documents() const { return split_documents_; }
  /// Returns how many of these have all that counts in the loss after their first T + 1 tokens.
  std::int64_t cut_documents() const { return cut_documents_; }
  /// Returns the share of inputs without a token, between 0 and 1.
  double padding() const;
  /// Returns XXH3-64 over all pieces.
  std::uint64_t hash() const;

 private:
  void find_pieces(const TokenStream& stream);
  void arrange(std::span<const std::int64_t> sequence_of_piece);

  std::int64_t sequence_length_;
  std::int64_t documents_ = 0;
  std::int64_t split_documents_ = 0;
  std::int64_t cut_documents_ = 0;
  std::vector<PackedPiece> pieces_;  ///< one sequence after another
  std::vector<std::int64_t> ends_;   ///< end of each sequence's pieces
};

}  // namespace llamesh::data
