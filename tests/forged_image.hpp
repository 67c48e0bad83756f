#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/memory/memory_image.hpp"
#include "core/hash.hpp"

namespace llamesh::test {

/// Changes an image's header and text, and makes all hashes right again.
inline void forge(const std::filesystem::path& file,
                  const std::function<void(checkpoint::ImageHeader&, std::string&)>& change) {
  auto header = checkpoint::MemoryImage::read_header(file).value();
  checkpoint::MemoryImage image(file, header.key.bytes, checkpoint::image_text_bytes);
  // The hashes of the segments, then room for the text.
  const auto contents =
      image.body(checkpoint::image_text_bytes).subspan(static_cast<std::size_t>(header.key.bytes));
  auto* const at = contents.last(checkpoint::image_text_bytes).data();
  const auto length = header.text_bytes;
  std::string text(reinterpret_cast<const char*>(at), static_cast<std::size_t>(length));
  change(header, text);
  std::memset(at, 0, checkpoint::image_text_bytes);
  std::memcpy(at, text.data(), text.size());
  if (header.text_bytes == length) header.text_bytes = std::ssize(text);
  const auto hashed = at - contents.data() + header.text_bytes;
  if (hashed <= std::ssize(contents))
    header.contents_hash = hash_of(contents.data(), static_cast<std::size_t>(hashed));
  header.hash = header.expected_hash();
  image.write_header(header);
}

/// Changes the training state in an image's text, and makes all hashes right again.
inline void forge_text(const std::filesystem::path& file,
                       const std::function<void(nlohmann::json&)>& change) {
  forge(file, [&](checkpoint::ImageHeader&, std::string& text) {
    auto json = nlohmann::json::parse(text);
    change(json);
    text = json.dump();
  });
}

}  // namespace llamesh::test
