#pragma once

#include <cstdint>
#include <span>

namespace llamesh::data {

/// Far more than a run can see.
inline constexpr std::int64_t random_stream_size = std::int64_t{1} << 40;

/// Writes tokens [first, first + out.size()) of an endless stream of ids below `vocab_size`. Token
/// i is a function of (seed, vocab_size, i) only: Philox's word i times vocab_size / 2^32 (uniform
/// to within vocab_size / 2^32).
void draw_tokens(std::uint64_t seed, std::int64_t vocab_size, std::int64_t first,
                 std::span<std::int32_t> out);

}  // namespace llamesh::data
