#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace llamesh {

/// Returns XXH3-64 (xxhash.com) over `bytes` bytes.
std::uint64_t hash_of(const void* data, std::size_t bytes);

/// XXH3-64 over data that arrives in parts.
class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  RunningHash(const RunningHash&) = delete;
  RunningHash& operator=(const RunningHash&) = delete;
  void add(const void* data, std::size_t bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Formats a hash for a file: 16 hexadecimal digits.
std::string to_hex(std::uint64_t hash);
/// Throws a user error if the text is not such a hash.
std::uint64_t from_hex(std::string_view text);

}  // namespace llamesh
