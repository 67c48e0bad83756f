#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/format/manifest.hpp"
#include "data/data_options.hpp"

namespace llamesh::app {

/// Information about model and data from a checkpoint's inputs.
struct Origin {
  std::string hf;          ///< Hugging Face folder that the model came from; empty: none
  data::DataOptions data;  ///< how text and files become sequences
};

/// Reads the inputs stored in a checkpoint (YAML): from a run by any version, or the few keys that
/// `convert` writes. Missing keys get their defaults. Throws a user error if the text is not YAML.
Origin origin_of(const std::string& config);

/// Reads a checkpoint's, with the chat template that its run has written conversations with.
Origin origin_of(const std::filesystem::path& checkpoint, const checkpoint::TrainState& progress);

/// Returns the tokenizer for the model's text, for tokenizer::open_tokenizer: the one for the run's
/// data, or the one in the model's Hugging Face folder if the data are ids or unknown and name no
/// tokenizer.
std::string tokenizer_of(const Origin& origin);

/// Returns the chat template of the model's data; `automatic` if it depends on a folder that no
/// longer exists.
data::ChatTemplate chat_template_of(const data::DataOptions& data);

/// Returns true if the path has a tokenizer: a file, or a folder with one that open_tokenizer()
/// accepts.
bool has_tokenizer(const std::filesystem::path& path);

}  // namespace llamesh::app
