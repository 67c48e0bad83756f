#include "optim/rounding_bits.hpp"

#include <algorithm>
#include <optional>

#include "core/philox.hpp"

namespace llamesh::optim {
namespace {

/// Returns `bits` for a range whose box consists of equally distant runs in the array; nothing for
/// any other.
std::optional<ops::RoundingBits> strided(const Shape& array, const BoxRange& range,
                                         ops::RoundingBits bits) {
  const auto& box = range.box;
  std::size_t split = array.size();  // the last dim that is split, plus 1
  std::int64_t inner = 1;
  while (split > 0 && box.shape[split - 1] == array[split - 1]) inner *= array[--split];
  for (std::size_t dim = 1; dim + 1 < split; ++dim)
    if (box.shape[dim] != array[dim]) return std::nullopt;
  for (std::size_t dim = 0; dim < array.size(); ++dim)
    bits.origin = bits.origin * array[dim] + box.begin[dim];
  bits.begin = range.begin;
  bits.run = split == 0 ? inner : inner * box.shape[split - 1];
  bits.stride = split == 0 ? inner : inner * array[split - 1];
  return bits;
}

}  // namespace

ops::RoundingBits rounding_stream(std::uint64_t seed, std::string_view name, std::int64_t step) {
  static const std::uint64_t purpose = name_hash("optimizer.moments");
  const auto words = philox(seed ^ purpose, name_hash(name), static_cast<std::uint64_t>(step));
  return {.key = words[0] | std::uint64_t{words[1]} << 32U,
          .stream = words[2] | std::uint64_t{words[3]} << 32U};
}

void for_each_rounded(const Shape& array, const BoxRange& range, const ops::RoundingBits& stream,
                      const VisitRounded& visit) {
  if (const auto bits = strided(array, range, stream)) return visit(0, range.count, *bits);
  for_each_run(array, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
    auto bits = stream;
    bits.origin = begin;
    bits.run = bits.stride = count;
    visit(at, count, bits);
  });
}

}  // namespace llamesh::optim
