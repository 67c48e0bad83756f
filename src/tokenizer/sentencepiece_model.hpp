#pragma once

#include <string>
#include <string_view>

namespace llamesh::tokenizer {

// Checks that the SentencePiece library does not make on a model file (sentencepiece_model.proto).
// The library has already parsed the file as a well-formed protobuf message.

/// Returns true if the model is BPE rather than Unigram, word or character.
bool is_bpe(std::string_view model);

/// Throws a user error that names `path` if the character normalization table points outside
/// itself: the library follows it unchecked.
void check_normalization(const std::string& path, std::string_view model);

}  // namespace llamesh::tokenizer
