#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace llamesh
