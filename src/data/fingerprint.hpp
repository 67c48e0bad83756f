#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/hash.hpp"

namespace llamesh::data {

/// Identity of a training data file, independent of its location.
struct FileFingerprint {
  std::string path;  ///< for messages
  std::int64_t tokens = 0;
  std::uint64_t hash = 0;  ///< over its ids and their annotations; see add_sample()
};

/// Splitting of a run's data into sequences, their order, and the form of conversations.
struct DataOrder {
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;  ///< sequences per step
  std::string order;              ///< "shuffled" or "sequential"
  std::vector<double> weights;    ///< per source
  std::string packing = "concatenate";
  std::uint64_t documents = 0;  ///< hash over the packed documents; 0 if they are concatenated
  /// The resolved one, or "jinja:" and the hash of its text; plain if the data are not JSONL.
  std::string chat_template = "plain";
  std::string loss_on = "assistant";
};

/// Fingerprint that lets a resumed run detect changed training data: a checkpoint only holds the
/// position in the data.
struct Fingerprint {
  std::string tokenizer;  ///< its name, for messages; empty if the files hold ids
  std::uint64_t vocabulary = 0;
  std::vector<std::vector<FileFingerprint>> sources;
  /// Empty in checkpoints from versions that did not store it.
  std::optional<DataOrder> data_order = {};
};

/// Adds the number of `bytes` and the bytes themselves to `hash`. Above 8 x `piece_bytes` it adds
/// only 8 pieces, evenly spaced from the first byte to the last. A change between the pieces that
/// keeps the size goes unnoticed: the price for not reading terabytes.
void add_sample(RunningHash& hash, std::span<const std::uint8_t> bytes, std::size_t piece_bytes);

/// Returns the piece size for this many files: a file's sample takes 8 MiB, and all samples
/// together 64 MiB; above 512 files it is 128 KiB per file.
std::size_t piece_bytes_for(std::size_t files);

/// Serializes to one line of JSON.
std::string to_text(const Fingerprint& fingerprint);

/// Parses to_text(). Returns nothing if `text` is not from this version of llamesh. Checks that all
/// numbers are in range, and so is the token sum per source.
std::optional<Fingerprint> parse_fingerprint(const std::string& text);

/// Describes the first difference from `then`, for the user; empty if there is none. Ignores paths,
/// and a chat template and a loss that make no difference to the files' ids and masks.
std::string difference(const Fingerprint& then, const Fingerprint& now);

}  // namespace llamesh::data
