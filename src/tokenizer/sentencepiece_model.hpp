#pragma once

#include <string>
#include <string_view>

namespace llamesh::tokenizer {

// What the SentencePiece library neither reports nor checks about a model file
// (sentencepiece_model.proto). The library has found the file to be a well-formed protobuf message.

/// Whether the model is BPE; otherwise it is Unigram, or words or characters.
bool is_bpe(std::string_view model);

/// Throws a user error that names `path` when the character normalization table points outside
/// itself: the library follows it unchecked.
void check_normalization(const std::string& path, std::string_view model);

}  // namespace llamesh::tokenizer
