#include "data/random_tokens.hpp"

#include "core/philox.hpp"

namespace llamesh::data {

void draw_tokens(std::uint64_t seed, std::int64_t vocab_size, std::int64_t first,
                 std::span<std::int32_t> out) {
  const std::uint64_t key = seed ^ name_hash("random tokens");
  const auto begin = static_cast<std::uint64_t>(first);
  auto words = philox(key, 0, begin / 4);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t at = begin + i;
    if (i > 0 && at % 4 == 0) words = philox(key, 0, at / 4);
    out[i] =
        static_cast<std::int32_t>((words[at % 4] * static_cast<std::uint64_t>(vocab_size)) >> 32U);
  }
}

}  // namespace llamesh::data
