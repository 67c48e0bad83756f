#include "data/packing.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// Returns a sequence for each piece, by best-fit decreasing; numbers have no order yet.
std::vector<std::int64_t> fit_best(std::span<const PackedPiece> pieces, std::int64_t capacity) {
  std::vector<std::size_t> by_length(pieces.size());
  std::iota(by_length.begin(), by_length.end(), std::size_t{0});
  std::ranges::stable_sort(
      by_length, [&](std::size_t a, std::size_t b) { return pieces[a].tokens > pieces[b].tokens; });
  std::vector<std::int64_t> sequence_of_piece(pieces.size());
  std::map<std::int64_t, std::vector<std::int64_t>> by_space;  // free tokens -> sequences
  std::int64_t sequences = 0;
  for (const std::size_t piece : by_length) {
    const std::int64_t tokens = pieces[piece].tokens;
    std::int64_t space = capacity, sequence = sequences;
    if (const auto best = by_space.lower_bound(tokens); best != by_space.end()) {
      space = best->first;
      sequence = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) by_space.erase(best);
    } else {
      ++sequences;
    }
    sequence_of_piece[piece] = sequence;
    if (space - tokens >= 2) by_space[space - tokens].push_back(sequence);
  }
  return sequence_of_piece;
}

}  // namespace

PackedSequences::PackedSequences(const TokenStream& stream, Packing packing,
                                 std::int64_t sequence_length)
    : sequence_length_(sequence_length) {
  expects(packing != Packing::concatenate, "concatenated sequences are not packed");
  find_pieces(stream);
  std::vector<std::int64_t> sequence_of_piece(pieces_.size());
  if (packing == Packing::best_fit)
    sequence_of_piece = fit_best(pieces_, sequence_length + 1);
  else
    std::iota(sequence_of_piece.begin(), sequence_of_piece.end(), 0);
  arrange(sequence_of_piece);
}

void PackedSequences::find_pieces(const TokenStream& stream) {
  const std::int64_t longest = sequence_length_ + 1;
  for (std::int64_t begin = 0; begin < stream.size();) {
    std::int64_t end = stream.next_document(begin + 1, stream.size());
    if (stream.has_pairs()) end = stream.next_document(end + 1, stream.size());
    ++documents_;
    if (end - begin > longest) {
      ++split_documents_;
      const std::int64_t target = stream.next_target(begin + 1, end);
      if (target >= begin + longest && target < end) ++cut_documents_;
    }
    for (; end - begin >= 2; begin += sequence_length_)
      pieces_.push_back({begin, std::min(end - begin, longest)});
    begin = end;
  }
}

void PackedSequences::arrange(std::span<const std::int64_t> sequence_of_piece) {
  constexpr std::int64_t unnumbered = -1;
  std::vector<std::int64_t> numbers(sequence_of_piece.size(), unnumbered);
  for (const std::int64_t sequence : sequence_of_piece) {
    auto& number = numbers[static_cast<std::size_t>(sequence)];
    if (number == unnumbered) {
      number = size();
      ends_.push_back(0);
    }
    ++ends_[static_cast<std::size_t>(number)];  // counts pieces
  }
  std::inclusive_scan(ends_.begin(), ends_.end(), ends_.begin());
  std::vector<std::int64_t> next(ends_.size(), 0);  // where a sequence's next piece goes
  for (std::size_t i = 1; i < next.size(); ++i) next[i] = ends_[i - 1];
  std::vector<PackedPiece> arranged(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto number = numbers[static_cast<std::size_t>(sequence_of_piece[i])];
    arranged[static_cast<std::size_t>(next[static_cast<std::size_t>(number)]++)] = pieces_[i];
  }
  pieces_ = std::move(arranged);
}

std::span<const PackedPiece> PackedSequences::pieces(std::int64_t sequence) const {
  const auto i = static_cast<std::size_t>(sequence);
  const std::int64_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::span(pieces_).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(ends_[i] - begin));
}

double PackedSequences::padding() const {
  std::int64_t inputs = 0;
  for (std::int64_t sequence = 0; sequence < size(); ++sequence) {
    std::int64_t tokens = 0;
    for (const PackedPiece& piece : pieces(sequence)) tokens += piece.tokens;
    inputs += std::min(tokens, sequence_length_);
  }
  return 1 - static_cast<double>(inputs) / static_cast<double>(size() * sequence_length_);
}

std::uint64_t PackedSequences::hash() const {
  RunningHash hash;
  hash.add(pieces_.data(), pieces_.size() * sizeof(PackedPiece));
  hash.add(ends_.data(), ends_.size() * sizeof(std::int64_t));
  return hash.value();
}

}  // namespace llamesh::data
