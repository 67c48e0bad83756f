#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/fingerprint.hpp"
#include "data/sampler.hpp"
#include "data/token_stream.hpp"

namespace llamesh::data {

/// A run's training data: one or more sources, cut into sequences of one length.
class TrainingData {
 public:
  /// Opens the sources that `options` name. Throws a user error when one cannot be opened, is
  /// shorter than a sequence, or has a weight so small that an epoch never reads it.
  TrainingData(const DataOptions& options, std::int64_t vocab_size);
  /// The same with the result of tokenize(), from this or another process.
  TrainingData(const DataOptions& options, std::int64_t vocab_size,
               std::span<const TokenizedText> tokenized);
  /// What of these sources is tokenized at the start: each of them, or none where is_tokenized() is
  /// false. Throws as the constructor does.
  static std::vector<TokenizedText> tokenize(const DataOptions& options, std::int64_t vocab_size);

  /// Source i.
  const TokenStream& stream(std::size_t source) const { return streams_[source]; }
  /// Names the source, file and offset of a position of the run, for messages.
  Sampler sampler(std::uint64_t seed) const { return {shares_, order_, seed}; }
  std::int64_t sequence_length() const { return sequence_length_; }
  /// A line for each source: its files, tokens and sequences, and its share of an epoch.
  std::vector<std::string> describe() const;
  /// For a run with so many sequences in a step. Reads some of each file; see Fingerprint.
  Fingerprint fingerprint(std::int64_t global_batch) const;

 private:
  std::string tokenizer_;  ///< of text and JSONL: its name
  std::uint64_t vocabulary_hash_ = 0;
  std::vector<TokenStream> streams_;
  std::vector<Share> shares_;
  Order order_;
  std::int64_t sequence_length_;
};

}  // namespace llamesh::data
