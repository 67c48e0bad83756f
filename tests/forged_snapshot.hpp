#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/memory/memory_snapshot.hpp"
#include "core/hash.hpp"

namespace llamesh::test {

/// Changes a snapshot's header and text, and makes all hashes right again.
inline void forge(const std::filesystem::path& file,
                  const std::function<void(checkpoint::SnapshotHeader&, std::string&)>& change) {
  auto header = checkpoint::MemorySnapshot::read_header(file).value();
  checkpoint::MemorySnapshot snapshot(file, header.key.bytes, checkpoint::snapshot_json_bytes);
  // The hashes of the segments, then room for the text.
  const auto contents = snapshot.body(checkpoint::snapshot_json_bytes)
                            .subspan(static_cast<std::size_t>(header.key.bytes));
  auto* const at = contents.last(checkpoint::snapshot_json_bytes).data();
  const auto length = header.json_bytes;
  std::string text(reinterpret_cast<const char*>(at), static_cast<std::size_t>(length));
  change(header, text);
  std::memset(at, 0, checkpoint::snapshot_json_bytes);
  std::memcpy(at, text.data(), text.size());
  if (header.json_bytes == length) header.json_bytes = std::ssize(text);
  const auto hashed = at - contents.data() + header.json_bytes;
  if (hashed <= std::ssize(contents))
    header.contents_hash = hash_of(contents.data(), static_cast<std::size_t>(hashed));
  header.hash = header.expected_hash();
  snapshot.write_header(header);
}

/// Changes the training state in a snapshot's text, and makes all hashes right again.
inline void forge_text(const std::filesystem::path& file,
                       const std::function<void(nlohmann::json&)>& change) {
  forge(file, [&](checkpoint::SnapshotHeader&, std::string& text) {
    auto json = nlohmann::json::parse(text);
    change(json);
    text = json.dump();
  });
}

}  // namespace llamesh::test
