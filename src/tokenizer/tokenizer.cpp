#include "tokenizer/tokenizer.hpp"

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "core/utf8.hpp"

namespace llamesh::tokenizer {
namespace {

Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.bytes.emplace_back(1, static_cast<char>(byte));
  return vocabulary;
}

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer(byte_vocabulary()) {}
  void encode_chunk(std::string_view text, Chunk, std::vector<std::int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::size_t next_cut(std::string_view text, std::size_t from) const override {
    return std::min(from, text.size());
  }
};

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode(text, Chunk::first, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, Chunk chunk, std::vector<std::int32_t>& ids,
                       SpecialTokens special) const {
  // Chunks of a few hundred KiB stay in cache and bound what the libraries allocate.
  constexpr std::size_t chunk_bytes = 256 << 10;
  while (!text.empty()) {
    const std::size_t cut = next_cut(text, std::min(chunk_bytes, text.size()));
    if (special == SpecialTokens::recognized)
      encode_chunk(text.substr(0, cut), chunk, ids);
    else
      encode_content_chunk(text.substr(0, cut), chunk, ids);
    text.remove_prefix(cut);
    chunk = Chunk::continuation;
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  std::size_t spaces_to_drop = vocabulary_.dropped_spaces;
  for (const std::int32_t id : ids) text += visible_bytes(id, spaces_to_drop);
  return text;
}

const std::string& Tokenizer::bytes_of(std::int32_t id) const {
  validate(id >= 0 && id < vocab_size(), "token id {} is outside the tokenizer's vocabulary of {}",
           id, vocab_size());
  return vocabulary_.bytes[static_cast<std::size_t>(id)];
}

std::string_view Tokenizer::visible_bytes(std::int32_t id, std::size_t& spaces_to_drop) const {
  std::string_view bytes = bytes_of(id);
  while (spaces_to_drop > 0 && bytes.starts_with(' ') && id != vocabulary_.unknown) {
    bytes.remove_prefix(1);
    --spaces_to_drop;
  }
  if (!bytes.empty()) spaces_to_drop = 0;
  return bytes;
}

std::vector<std::int32_t> Tokenizer::suffix_ids() const {
  auto ids = vocabulary_.suffix_ids;
  if (vocabulary_.eos && (ids.empty() || ids.back() != *vocabulary_.eos))
    ids.push_back(*vocabulary_.eos);
  return ids;
}

std::uint64_t Tokenizer::vocabulary_hash() const {
  RunningHash hash;
  for (const std::string& text : vocabulary_.bytes) {
    const std::uint64_t size = text.size();
    hash.add(&size, sizeof(size));
    hash.add(text.data(), text.size());
  }
  return hash.value();
}

std::string TextStream::push(std::int32_t id) {
  held_ += tokenizer_.visible_bytes(id, spaces_to_drop_);
  const std::size_t whole = held_.size() - unfinished_utf8(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return text;
}

std::string TextStream::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  return text;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  namespace fs = std::filesystem;
  if (name == "byte") return std::make_shared<const ByteTokenizer>();
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
      const auto path = (fs::path(name) / file).string();
      if (fs::exists(path, ignored)) return open_tokenizer(path);
    }
    fail(ExitCode::bad_input, "the folder '{}' holds neither tokenizer.json nor tokenizer.model",
         name);
  }
  const auto extension = fs::path(name).extension();
  if (extension == ".json") return open_hugging_face(name);
  if (extension == ".model") return open_sentencepiece(name);
  validate(fs::exists(name, ignored), "the tokenizer '{}' does not exist{}", name,
           did_you_mean_path(name));
  fail(
      ExitCode::bad_input,
      "the tokenizer '{}' is of an unknown kind; give byte, a SentencePiece .model, a Hugging Face "
      "tokenizer.json, or a folder that holds one of them",
      name);
}

}  // namespace llamesh::tokenizer
