#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/provenance/licenses.hpp"

namespace llamesh::app {

/// Role in which a run reads a file or folder.
enum class SourceKind : std::uint8_t {
  training_data,
  validation_data,
  tokenizer,
  model,       ///< Hugging Face folder
  adapters,    ///< PEFT folder
  checkpoint,  ///< another run's, or that run's folder
};

/// Returns "training data", "model", ...
const char* name_of(SourceKind kind);
/// Names the bytes that a source's hash covers, and the algorithm.
const char* hash_name(SourceKind kind);

/// A file or folder that a run has read, outside its own folder. Empty members are unknown.
struct RunSource {
  SourceKind kind;
  std::string path;  ///< as in the inputs
  std::optional<std::int64_t> bytes = {};
  std::optional<std::int64_t> tokens = {};
  std::string hash = {};  ///< as recorded in a checkpoint, see hash_name()
  std::optional<License> license = {};
};

/// List that has each source once. There may be many files.
class SourceList {
 public:
  /// Returns the source's index, and adds the source if it is new.
  std::size_t add(SourceKind kind, const std::string& path);
  const std::vector<RunSource>& all() const { return all_; }
  std::vector<RunSource>& all() { return all_; }

 private:
  std::vector<RunSource> all_;
  std::map<std::pair<SourceKind, std::string>, std::size_t> index_;
};

/// Facts from a launch's inputs.
struct ConfigFacts {
  std::string run_name;
  SourceList sources;
  bool resumes_own = true;  ///< from a checkpoint in the run folder, if there is one
};

/// Reads a launch's inputs (YAML). Returns nothing if this llamesh does not understand them.
std::optional<ConfigFacts> config_facts(const std::string& config);

/// Adds the hashes and token counts in data::to_text(Fingerprint), and files that are only there.
void add_fingerprint(const std::string& fingerprint, SourceList& sources);

/// Adds sizes and licenses from the disk. A relative path begins in the current folder, as for
/// `llamesh train`. A file that has changed after `read_at` (seconds since 1970) is not the one
/// that was read, so its size stays unknown.
void look_at_files(SourceList& sources, double read_at);

}  // namespace llamesh::app
