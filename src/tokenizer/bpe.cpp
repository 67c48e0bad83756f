#include "tokenizer/bpe.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>
#include <tuple>

namespace llamesh::tokenizer {
namespace {

constexpr std::uint64_t no_pair = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t longest_short = 64;  // symbols; the scan is faster than the heap up to about
                                           // here

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::size_t hash_of(std::uint64_t pair) {
  const std::uint64_t mixed = pair * 0x9E3779B97F4A7C15U;
  return mixed ^ mixed >> 32;
}

}  // namespace

BytePairEncoding::BytePairEncoding(std::span<const Merge> merges)
    : slots_(std::bit_ceil(2 * merges.size() + 2), Slot{no_pair, no_rank, 0}) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = hash_of(pair) & mask;
    while (slots_[at].pair != no_pair && slots_[at].pair != pair) at = (at + 1) & mask;
    slots_[at] = {pair, static_cast<std::uint32_t>(rank), merge.result};
  }
}

const BytePairEncoding::Slot* BytePairEncoding::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(pair) & mask;
  while (slots_[at].pair != pair) {
    if (slots_[at].pair == no_pair) return nullptr;
    at = (at + 1) & mask;
  }
  return &slots_[at];
}

void BytePairEncoding::apply(std::vector<std::int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= longest_short)
    apply_short(symbols);
  else
    apply_long(symbols);
}

void BytePairEncoding::apply_short(std::vector<std::int32_t>& symbols) const {
  std::array<const Slot*, longest_short> merges;  // symbol i with its right neighbor
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    std::uint32_t rank = no_rank;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (merges[i] != nullptr && merges[i]->rank < rank) {
        rank = merges[i]->rank;
        best = i;
      }
    if (rank == no_rank) break;
    symbols[best] = merges[best]->result;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void BytePairEncoding::apply_long(std::vector<std::int32_t>& symbols) const {
  constexpr std::int32_t gone = -1;
  const std::size_t count = symbols.size();
  std::vector<std::size_t> previous(count), next(count);
  for (std::size_t i = 0; i < count; ++i) {
    previous[i] = i - 1;  // never read for the first one
    next[i] = i + 1;
  }
  using Candidate = std::tuple<std::uint32_t, std::size_t, const Slot*>;  // rank, position
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left) {
    if (next[left] >= count) return;
    if (const Slot* slot = find(symbols[left], symbols[next[left]]))
      candidates.emplace(slot->rank, left, slot);
  };
  for (std::size_t i = 0; i < count; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, left, slot] = candidates.top();
    candidates.pop();
    const std::size_t right = next[left];
    // One of the two may have merged with another since.
    if (symbols[left] == gone || right >= count ||
        pair_of(symbols[left], symbols[right]) != slot->pair)
      continue;
    symbols[left] = slot->result;
    symbols[right] = gone;
    next[left] = next[right];
    if (next[left] < count) previous[next[left]] = left;
    if (left > 0) consider(previous[left]);
    consider(left);
  }
  std::erase(symbols, gone);
}

}  // namespace llamesh::tokenizer
