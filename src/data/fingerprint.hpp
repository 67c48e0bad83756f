#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/hash.hpp"

namespace llamesh::data {

/// Identifies a file of the training data, wherever it is stored.
struct FileFingerprint {
  std::string path;  ///< for messages
  std::int64_t tokens = 0;
  std::uint64_t hash = 0;  ///< of its ids and what is said about them; see add_sample()
};

/// How a run cuts its data into sequences and in which order it reads them.
struct DataOrder {
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;  ///< sequences of a step
  std::string order;              ///< "shuffled" or "sequential"
  std::vector<double> weights;    ///< by source
};

/// By this a resumed run notices that its training data have changed: a checkpoint holds only the
/// position in them.
struct Fingerprint {
  std::string tokenizer;  ///< its name, for messages; empty where the files hold ids
  std::uint64_t vocabulary = 0;
  std::vector<std::vector<FileFingerprint>> sources;
  /// Empty in checkpoints of versions that did not store it.
  std::optional<DataOrder> data_order = {};
};

/// Adds to `hash` how many `bytes` there are and the bytes themselves; of more than 8 x
/// `piece_bytes` only so many pieces, evenly spaced from the first byte to the last. A change
/// between the pieces that leaves the size as it was is not noticed: the price of not reading
/// terabytes.
void add_sample(RunningHash& hash, std::span<const std::uint8_t> bytes, std::size_t piece_bytes);

/// A piece's bytes where there are so many files: the sample of a file takes 8 MiB, and those of
/// all files 64 MiB; of more than 512 files 128 KiB each.
std::size_t piece_bytes_for(std::size_t files);

/// JSON of one line.
std::string to_text(const Fingerprint& fingerprint);

/// Nothing when `text` is not to_text() of this version of llamesh. Numbers are in their range,
/// also the sum of a source's tokens.
std::optional<Fingerprint> parse_fingerprint(const std::string& text);

/// The first difference from `then`, as text for a user; paths are not compared. Empty when there
/// is none.
std::string difference(const Fingerprint& then, const Fingerprint& now);

}  // namespace llamesh::data
