#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/fingerprint.hpp"
#include "data/packing.hpp"
#include "data/sampler.hpp"
#include "data/token_batch.hpp"
#include "data/token_stream.hpp"

namespace llamesh::data {

/// A run's training data: one or more sources, split into sequences with a common length.
class TrainingData {
 public:
  /// Opens the sources in `options`. Throws a user error if one cannot be opened, is shorter than a
  /// sequence, or has a weight so small that an epoch never reads it.
  TrainingData(const DataOptions& options, std::int64_t vocab_size);
  /// Opens the sources with the result of tokenize(), from this or another process.
  TrainingData(const DataOptions& options, std::int64_t vocab_size,
               std::span<const TokenizedText> tokenized);
  /// Tokenizes each source, or returns nothing if is_tokenized() is false. Throws like the
  /// constructor.
  static std::vector<TokenizedText> tokenize(const DataOptions& options, std::int64_t vocab_size);

  std::size_t sources() const { return streams_.size(); }
  /// Returns source `source`.
  const TokenStream& stream(std::size_t source) const { return streams_[source]; }
  /// Returns the sampler, which maps a position in the run to source and sequence.
  Sampler sampler(std::uint64_t seed) const { return {shares_, order_, seed}; }
  /// Fills a batch's row with a sequence.
  void read(SourceSequence at, TokenBatch& batch, std::int64_t row) const;
  std::int64_t sequence_length() const { return sequence_length_; }
  /// Throws a user error if no token in any sequence counts in the loss. Looks at up to 1024
  /// sequences per source, evenly spaced; only if none of them has a target, at all of them.
  void check_targets() const;
  /// Returns a line for each source in which most sequences have no token that counts in the loss,
  /// with their share among the sequences that check_targets() looks at.
  std::vector<std::string> warnings() const;
  /// Describes each source on one line: files, tokens, sequences, share of an epoch, and what
  /// packing or the cuts between sequences made of the documents.
  std::vector<std::string> describe() const;
  /// Returns the fingerprint for a run with this batch size. Reads samples from each file.
  Fingerprint fingerprint(std::int64_t global_batch) const;

 private:
  std::string tokenizer_;  ///< name, for text and JSONL
  std::uint64_t vocabulary_hash_ = 0;
  void add_chat_options(DataOrder& order) const;
  void add_share(const TokenStream& stream, double weight);
  std::string describe_packing(std::size_t source) const;
  std::string describe_cuts(std::size_t source) const;
  bool has_target(SourceSequence at) const;
  double share_without_targets(std::size_t source) const;

  std::vector<TokenStream> streams_;
  std::vector<PackedSequences> packed_;  ///< per source; empty if concatenated
  std::vector<Share> shares_;
  Order order_;
  Packing packing_;
  Format format_;
  ChatTemplate chat_template_;
  LossOn loss_on_;
  std::int64_t sequence_length_;
};

}  // namespace llamesh::data
