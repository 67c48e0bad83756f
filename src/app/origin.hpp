#pragma once

#include <filesystem>
#include <string>

#include "data/data_options.hpp"

namespace llamesh::app {

/// What a checkpoint's inputs say about its model and data.
struct Origin {
  std::string hf;          ///< the Hugging Face folder that the model came from; empty: none
  data::DataOptions data;  ///< format, tokenizer, document_mask and eos_token; others are not set
};

/// Reads the inputs stored in a checkpoint (YAML): those of a run of any version, or the few keys
/// that `convert` writes. Missing keys have their defaults. Throws a user error where the text is
/// not YAML.
Origin origin_of(const std::string& config);

/// The tokenizer of the model's text, for tokenizer::open_tokenizer: that of the run's data; where
/// these are ids or unknown, and no tokenizer is named, that of the folder the model came from.
std::string tokenizer_of(const Origin& origin);

/// Whether there is a tokenizer: a file, or a folder with one of those that open_tokenizer() takes.
bool has_tokenizer(const std::filesystem::path& path);

}  // namespace llamesh::app
