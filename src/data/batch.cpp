#include "data/batch.hpp"

#include <algorithm>
#include <span>

namespace llamesh::data {

Batch::Batch(std::int64_t sequences, std::int64_t length)
    : tokens(static_cast<std::size_t>(sequences * length)),
      targets(static_cast<std::size_t>(sequences * length), ignored_target),
      sequence_length(length) {}

void Batch::set_row(std::int64_t row, const TokenStream& stream, std::int64_t sequence) {
  const auto length = static_cast<std::size_t>(sequence_length);
  const std::size_t offset = static_cast<std::size_t>(row) * length;
  const auto inputs = std::span(tokens).subspan(offset, length);
  const auto shifted = std::span(targets).subspan(offset, length);
  const std::int64_t begin = sequence * sequence_length;
  const auto present = static_cast<std::size_t>(
      std::clamp<std::int64_t>(stream.size() - 1 - begin, 0, sequence_length));
  if (present > 0) {
    stream.read(begin, inputs.first(present));
    std::copy(inputs.begin() + 1, inputs.begin() + static_cast<std::ptrdiff_t>(present),
              shifted.begin());
    stream.read(begin + static_cast<std::int64_t>(present), shifted.subspan(present - 1, 1));
  }
  std::ranges::fill(inputs.subspan(present), 0);
  std::ranges::fill(shifted.subspan(present), ignored_target);
}

}  // namespace llamesh::data
