#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace llamesh {

/// XXH3-64 (xxhash.com) of `bytes` bytes.
std::uint64_t hash_of(const void* data, std::size_t bytes);

/// The same of bytes that come in parts.
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

/// A hash as files hold it: 16 hexadecimal digits.
std::string to_hex(std::uint64_t hash);
/// Throws a user error where the text is no such hash.
std::uint64_t from_hex(std::string_view text);

}  // namespace llamesh
