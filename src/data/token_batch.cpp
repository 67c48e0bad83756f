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

/// Returns the documents in pieces: pairs have two each.
std::vector<PackedPiece> documents_of(const TokenStream& stream,
                                      std::span<const PackedPiece> pieces) {
  std::vector<PackedPiece> documents;
  for (const auto& [begin, tokens] : pieces) {
    const auto end = begin + tokens;
    const auto middle = stream.has_pairs() ? stream.next_document(begin + 1, end) : end;
    documents.push_back({begin, middle - begin});
    if (middle < end) documents.push_back({middle, end - middle});
  }
  return documents;
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
                         std::span<const PackedPiece> pieces, std::size_t source) {
  const auto length = static_cast<std::size_t>(sequence_length);
  const std::size_t offset = static_cast<std::size_t>(row) * length;
  const auto inputs = std::span(tokens).subspan(offset, length);
  const auto predicted = std::span(targets).subspan(offset, length);
  std::span<std::int32_t> starts;
  if (stream.masks_documents()) {
    document_starts.resize(tokens.size());
    starts = std::span(document_starts).subspan(offset, length);
  }
  const std::span<std::int32_t> numbers = row_of_pairs(row, stream);
  std::ranges::fill(predicted, ignored_target);
  std::size_t at = 0;
  for (const PackedPiece& piece : documents_of(stream, pieces)) {
    const auto count = static_cast<std::size_t>(piece.tokens);
    expects(at + count <= length + 1, "{} tokens in a sequence of {}", at + count, length);
    // The last token of a full sequence is only a target.
    const std::size_t present = std::min(count, length - at);
    const auto predicted_here = predicted.subspan(at, count - 1);
    stream.read(piece.begin, inputs.subspan(at, present));
    stream.read(piece.begin + 1, predicted_here);
    stream.mask_targets(piece.begin + 1, predicted_here);
    if (!starts.empty())
      std::ranges::fill(starts.subspan(at, present), static_cast<std::int32_t>(at));
    if (!numbers.empty())
      std::ranges::fill(numbers.subspan(at, present),
                        add_document(stream, piece, predicted_here, source));
    at += present;
  }
  std::ranges::fill(inputs.subspan(at), 0);
  if (!starts.empty()) std::ranges::fill(starts.subspan(at), static_cast<std::int32_t>(at));
}

/// Returns a row of `documents` without any; empty if the stream has no pairs.
std::span<std::int32_t> TokenBatch::row_of_pairs(std::int64_t row, const TokenStream& stream) {
  if (!stream.has_pairs()) return {};
  if (row == 0) pairs.clear();
  documents.resize(tokens.size());
  const auto length = static_cast<std::size_t>(sequence_length);
  const auto numbers = std::span(documents).subspan(static_cast<std::size_t>(row) * length, length);
  std::ranges::fill(numbers, -1);
  return numbers;
}

/// Returns the number of the next document, which has these targets.
std::int32_t TokenBatch::add_document(const TokenStream& stream, const PackedPiece& document,
                                      std::span<const std::int32_t> targets_of_it,
                                      std::size_t source) {
  const std::int64_t number = stream.document_at(document.begin);
  const std::size_t side = number % 2 == 0 ? 0 : 1;
  if (side == 0) pairs.push_back({source, number / 2, {}});
  pairs.back().tokens[side] =
      std::ranges::count_if(targets_of_it, [](std::int32_t target) { return target >= 0; });
  return static_cast<std::int32_t>(2 * (pairs.size() - 1) + side);
}

void TokenBatch::set_part(const TokenBatch& whole, const std::array<std::int64_t, 2>& positions) {
  const auto first = sequence_length / 2, second = sequence_length - first;
  expects(std::max(positions[0] + first, positions[1] + second) <= whole.sequence_length &&
              tokens.size() * static_cast<std::size_t>(whole.sequence_length) ==
                  whole.tokens.size() * static_cast<std::size_t>(sequence_length),
          "sequences of {} as parts of {}", sequence_length, whole.sequence_length);
  document_starts.resize(whole.document_starts.empty() ? 0 : tokens.size());
  documents.resize(whole.documents.empty() ? 0 : tokens.size());
  pairs = whole.pairs;
  for (const auto values : {&TokenBatch::tokens, &TokenBatch::targets, &TokenBatch::document_starts,
                            &TokenBatch::documents}) {
    auto to = (this->*values).begin();
    for (auto from = (whole.*values).begin(); from != (whole.*values).end();
         from += whole.sequence_length) {
      to = std::copy_n(from + positions[0], first, to);
      to = std::copy_n(from + positions[1], second, to);
    }
  }
}

}  // namespace llamesh::data
