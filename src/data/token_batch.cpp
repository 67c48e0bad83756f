#include "data/token_batch.hpp"

#include <algorithm>
#include <span>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// Fills document_starts for the row that begins at token `begin`, and ignores targets that start a
/// new document.
void mark_documents(const TokenStream& stream, std::int64_t begin, std::span<std::int32_t> targets,
                    std::span<std::int32_t> starts) {
  const auto length = static_cast<std::int64_t>(starts.size());
  // One token beyond the row, for its last target.
  const std::int64_t end = std::min(begin + length + 1, stream.size());
  std::int64_t start = 0;
  for (std::int64_t at = begin + 1; (at = stream.next_document(at, end)) < end; ++at) {
    const std::int64_t next = at - begin;
    targets[static_cast<std::size_t>(next - 1)] = ignored_target;
    std::fill(starts.begin() + start, starts.begin() + next, static_cast<std::int32_t>(start));
    start = next;
  }
  std::fill(starts.begin() + start, starts.end(), static_cast<std::int32_t>(start));
}

}  // namespace

TokenBatch::TokenBatch(std::int64_t sequences, std::int64_t length)
    : tokens(static_cast<std::size_t>(sequences * length)),
      targets(static_cast<std::size_t>(sequences * length), ignored_target),
      sequence_length(length) {}

void TokenBatch::set_row(std::int64_t row, const TokenStream& stream, std::int64_t sequence) {
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
  stream.mask_targets(begin + 1, shifted.first(present));
  std::ranges::fill(inputs.subspan(present), 0);
  std::ranges::fill(shifted.subspan(present), ignored_target);
  if (!stream.masks_documents()) return;
  document_starts.resize(tokens.size());
  mark_documents(stream, begin, shifted, std::span(document_starts).subspan(offset, length));
}

void TokenBatch::set_row(std::int64_t row, const TokenStream& stream,
                         std::span<const PackedPiece> pieces) {
  const auto length = static_cast<std::size_t>(sequence_length);
  const std::size_t offset = static_cast<std::size_t>(row) * length;
  const auto inputs = std::span(tokens).subspan(offset, length);
  const auto predicted = std::span(targets).subspan(offset, length);
  std::span<std::int32_t> starts;
  if (stream.masks_documents()) {
    document_starts.resize(tokens.size());
    starts = std::span(document_starts).subspan(offset, length);
  }
  std::ranges::fill(predicted, ignored_target);
  std::size_t at = 0;
  for (const PackedPiece& piece : pieces) {
    const auto count = static_cast<std::size_t>(piece.tokens);
    expects(at + count <= length + 1, "{} tokens in a sequence of {}", at + count, length);
    // The last token of a full sequence is only a target.
    const std::size_t present = std::min(count, length - at);
    stream.read(piece.begin, inputs.subspan(at, present));
    stream.read(piece.begin + 1, predicted.subspan(at, count - 1));
    stream.mask_targets(piece.begin + 1, predicted.subspan(at, count - 1));
    if (!starts.empty())
      std::ranges::fill(starts.subspan(at, present), static_cast<std::int32_t>(at));
    at += present;
  }
  std::ranges::fill(inputs.subspan(at), 0);
  if (!starts.empty()) std::ranges::fill(starts.subspan(at), static_cast<std::int32_t>(at));
}

void TokenBatch::set_part(const TokenBatch& whole, const std::array<std::int64_t, 2>& positions) {
  const auto first = sequence_length / 2, second = sequence_length - first;
  expects(std::max(positions[0] + first, positions[1] + second) <= whole.sequence_length &&
              tokens.size() * static_cast<std::size_t>(whole.sequence_length) ==
                  whole.tokens.size() * static_cast<std::size_t>(sequence_length),
          "sequences of {} as parts of {}", sequence_length, whole.sequence_length);
  document_starts.resize(whole.document_starts.empty() ? 0 : tokens.size());
  for (const auto values :
       {&TokenBatch::tokens, &TokenBatch::targets, &TokenBatch::document_starts}) {
    auto to = (this->*values).begin();
    for (auto from = (whole.*values).begin(); from != (whole.*values).end();
         from += whole.sequence_length) {
      to = std::copy_n(from + positions[0], first, to);
      to = std::copy_n(from + positions[1], second, to);
    }
  }
}

}  // namespace llamesh::data
