#pragma once

#include <filesystem>
#include <string>

#include "data/data_options.hpp"

namespace llamesh::app {

/// What the inputs that a checkpoint was made with say of it.
struct Origin {
  std::string hf;          ///< the Hugging Face folder that the model came from; empty: none
  data::DataOptions data;  ///< format, tokenizer, document_mask and eos_token; others are not set
};

/// Of inputs as a checkpoint keeps them (YAML): those of a run, of whatever version, or the little
/// that `convert` leaves. Keys that are not there have their defaults. Throws a user error where
/// the text is no YAML.
Origin origin_of(const std::string& config);

/// The tokenizer of the model's text, for tokenizer::open_tokenizer: that of the run's data; where
/// these are ids or unknown, and no tokenizer is named, that of the folder the model came from.
std::string tokenizer_of(const Origin& origin);

/// Whether there is a tokenizer: a file, or a folder with one of those that open_tokenizer() takes.
bool has_tokenizer(const std::filesystem::path& path);

}  // namespace llamesh::app
