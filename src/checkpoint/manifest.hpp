#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format.hpp"
#include "core/box.hpp"

namespace llamesh::checkpoint {

/// "step_00000100": the folder of a checkpoint.
std::string name_of_step(std::int64_t step);
/// The step of such a name, at most 18 digits; -1 for any other name.
std::int64_t step_of_name(std::string_view name);

/// The training state of a checkpoint other than the tensors (attributes of / in state.h5). Random
/// numbers and the order of the data are functions of seed, step and tokens, so this suffices.
struct Progress {
  std::int64_t step = 0;    ///< optimizer steps done
  std::int64_t tokens = 0;  ///< since the start, over all ranks
  std::uint64_t seed = 0;
  std::string mesh;             ///< e.g. "replicate=2 x shard=2"
  std::string strategy;         ///< e.g. "hybrid_shard"
  std::string config;           ///< the resolved inputs, YAML
  std::string model_config;     ///< as Hugging Face's config.json
  std::string llamesh_version;  ///< of the program that wrote it
  std::string data = {};        ///< to_text() of data::Fingerprint; empty: not known
  /// How CPUs computed bf16 matmuls: "native" or "fp32"; empty: not a bf16 run on CPUs, or not
  /// known.
  std::string bf16_products = {};

  bool operator==(const Progress&) const = default;
};

/// Elements [begin, begin + count) of a part of a dataset as one rank wrote them, and the XXH3-64
/// of their bytes.
struct Segment {
  std::int64_t begin;
  std::int64_t count;
  std::uint64_t hash;
  int part = 0;
};

struct DatasetEntry {
  std::string path;               ///< e.g. /model/model.norm.weight
  Shape shape;                    ///< global
  std::int64_t offset = 0;        ///< of its first byte in state.h5
  std::vector<Box> parts;         ///< that it was cut into; together exactly the dataset
  std::vector<Segment> segments;  ///< by part, in order; together exactly each part

  std::int64_t numel() const { return llamesh::numel(shape); }
  bool is_cut() const { return parts.size() > 1; }
  BoxRange range(const Segment& segment) const {
    return {parts[static_cast<std::size_t>(segment.part)], segment.begin, segment.count};
  }
};

/// manifest.json: what state.h5 must be, to the byte. A folder without it is no checkpoint.
struct Manifest {
  Progress progress;
  std::int64_t file_bytes = 0;      ///< size of state.h5
  std::uint64_t metadata_hash = 0;  ///< XXH3-64 of all of state.h5 outside the datasets
  std::vector<DatasetEntry> datasets;

  const DatasetEntry* find(const std::string& path) const;
};

/// The oldest format that can say what these datasets are.
std::int64_t version_of(const std::vector<DatasetEntry>& datasets);

/// The text of manifest.json: JSON whose first line is the checksum of all that follows it.
std::string to_text(const Manifest& manifest);

/// Throws exit 74 when the text is damaged, exit 78 when its format_version is newer than ours or
/// the memory does not suffice. `name` is that of the file, for the error.
/// What it returns is consistent: integers are in range, segments tile their datasets, datasets are
/// within the file.
Manifest parse_manifest(const std::string& text, const std::string& name = manifest_name);

}  // namespace llamesh::checkpoint
