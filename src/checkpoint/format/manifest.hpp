#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/format.hpp"
#include "core/box.hpp"
#include "optim/pending_exchanges.hpp"

namespace llamesh::checkpoint {

/// Returns a checkpoint's folder name: "step_00000100".
std::string name_of_step(std::int64_t step);
/// Parses the step in such a name, at most 18 digits; -1 for any other name.
std::int64_t step_of_name(std::string_view name);
/// Largest step that such a name can have.
inline constexpr std::int64_t max_step = 999'999'999'999'999'999;

/// The Hugging Face folder that holds a checkpoint's frozen weights.
struct BaseModel {
  std::string path;    ///< absolute
  std::uint64_t hash;  ///< of the frozen weights (models/base_model.hpp)
  bool operator==(const BaseModel&) const = default;
};

/// Identifies the reference model in a run on pairs (train/run/reference_files.hpp).
struct PairReference {
  std::uint64_t model;      ///< its weights' hash
  std::uint64_t log_probs;  ///< hash over its log-probabilities of the training pairs
  bool operator==(const PairReference&) const = default;
};

/// Training state in a checkpoint, apart from the tensors (attributes of / in state.h5). Random
/// numbers and data order are functions of seed, step and tokens, so this is enough.
struct TrainState {
  std::int64_t step = 0;    ///< optimizer steps done
  std::int64_t tokens = 0;  ///< over all ranks, since the start
  std::uint64_t seed = 0;
  std::string mesh;             ///< e.g. "replicate=2 x shard=2"
  std::string strategy;         ///< e.g. "hybrid_shard"
  std::string config;           ///< resolved inputs, YAML
  std::string model_config;     ///< as Hugging Face's config.json
  std::string llamesh_version;  ///< the version that wrote it
  std::string data = {};        ///< to_text() of data::Fingerprint; empty: not known
  /// Compute precision for bf16 matmuls on CPUs: "native" or "fp32". Empty: not a bf16 CPU run, or
  /// unknown.
  std::string bf16_products = {};
  /// Attention's implementations on GPUs (ops::used_attention()). Empty: on CPUs, or unknown.
  std::string attention = {};
  /// ops::arithmetic(), on which the results' bits depended. Empty: on GPUs, or unknown.
  std::string arithmetic = {};
  std::optional<BaseModel> base = {};  ///< empty: the checkpoint holds all weights
  /// to_text() of train::ValidationRecord; empty: nothing was evaluated. Only in the manifest.
  std::string validation = {};
  std::optional<optim::PendingExchanges> exchanges = {};  ///< if there are. Only in the manifest.
  std::optional<PairReference> reference = {};            ///< likewise

  bool operator==(const TrainState&) const = default;
};

/// Elements [begin, begin + count) in a dataset part, as one rank wrote them, with their XXH3-64.
struct Segment {
  std::int64_t begin;
  std::int64_t count;
  std::uint64_t hash;
  int part = 0;
};

struct DatasetEntry {
  std::string path;               ///< e.g. /model/model.norm.weight
  Shape shape;                    ///< global
  std::int64_t offset = 0;        ///< offset of the first byte in state.h5
  std::vector<Box> parts;         ///< the dataset's split into parts that cover it exactly
  std::vector<Segment> segments;  ///< per part, in order; they cover each part exactly

  std::int64_t numel() const { return llamesh::numel(shape); }
  bool is_cut() const { return parts.size() > 1; }
  BoxRange range(const Segment& segment) const {
    return {parts[static_cast<std::size_t>(segment.part)], segment.begin, segment.count};
  }
};

/// manifest.json: the expected contents of state.h5, to the byte. A folder without it is not a
/// checkpoint.
struct Manifest {
  TrainState progress;
  std::int64_t file_bytes = 0;      ///< size of state.h5
  std::uint64_t metadata_hash = 0;  ///< XXH3-64 of state.h5 outside the datasets
  std::vector<DatasetEntry> datasets;

  const DatasetEntry* find(const std::string& path) const;
};

/// Returns the oldest format version that can describe these datasets, or the manifest.
std::int64_t version_of(const std::vector<DatasetEntry>& datasets);
std::int64_t version_of(const Manifest& manifest);

/// Largest manifest written and read, for some 28 million segments: each takes some 40 bytes.
inline constexpr std::int64_t longest_manifest = std::int64_t{1} << 30U;

/// Serializes to manifest.json: the first line is a checksum over everything after it.
std::string to_text(const Manifest& manifest);

/// Serializes to one line of JSON, as in manifest.json.
std::string to_text(const TrainState& state);
/// Parses the text of to_text(). Throws exit 74 with the key on any other text.
TrainState parse_train_state(const std::string& text);

/// Parses manifest.json. Throws exit 74 if the text is damaged, and exit 78 if its format_version
/// is newer than ours or memory is short. `name` is the file's name in errors. The result is
/// consistent: integers are in range, segments tile their datasets, and datasets lie within the
/// file.
Manifest parse_manifest(const std::string& text, const std::string& name = manifest_name);

}  // namespace llamesh::checkpoint
