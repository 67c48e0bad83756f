#include "core/hash.hpp"

// Header-only, compiled for the build's vector width. GCC 12 warns inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wuninitialized"
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

#include "core/error.hpp"

namespace llamesh {

struct RunningHash::State {
  XXH3_state_t xxh3;
};

std::uint64_t hash_of(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}
RunningHash::~RunningHash() = default;

void RunningHash::add(const void* data, std::size_t bytes) {
  XXH3_64bits_update(&state_->xxh3, data, bytes);
}

std::uint64_t RunningHash::value() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

std::string to_hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t hash = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, hash, 16);
  validate(text.size() == 16 && at == end && error == std::errc(), "'{}' is no hash", text);
  return hash;
}

}  // namespace llamesh
