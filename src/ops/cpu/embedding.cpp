#include <algorithm>
#include <span>

#include "ops/cpu/document_starts.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

void check_tokens(const Tensor& tokens, std::int64_t first_row) {
  expects(first_row >= 0, "a part of the vocabulary from {} on", first_row);
  for (const auto token : tokens.span<std::int32_t>())
    expects(token >= 0, "token {} is in no vocabulary", token);
}

/// Mapping from tokens to rows in a vocabulary part.
struct VocabularyPart {
  std::int64_t first, count;

  std::int64_t row_of(std::int32_t token) const { return token - first; }
  bool has(std::int32_t token) const { return 0 <= row_of(token) && row_of(token) < count; }
};

template <class T>
void add_row(T* to, const T* row, std::int64_t cols) {
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    store(to + i, load(to + i, lanes) + load(row + i, lanes), lanes);
  });
}

template <class T>
void gather(const Tensor& out, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
            Accumulate accumulate) {
  const auto cols = table.cols();
  const VocabularyPart part{first_row, table.rows()};
  const auto* token = tokens.as<std::int32_t>();
  const Rows<T> to(out);
  const Rows<const T> from(table);
  for_each_block(tokens.numel(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      const T* row = part.has(token[m]) ? from[part.row_of(token[m])] : nullptr;
      if (accumulate == Accumulate::yes) {
        if (row) add_row(to[m], row, cols);
      } else if (row) {
        std::copy_n(row, cols, to[m]);
      } else {
        std::fill_n(to[m], cols, T(0.0F));
      }
    }
  });
}

/// Positions of a part's tokens, sorted by token (stable counting sort): row v has order[start[v],
/// start[v + 1]), in token order.
struct Occurrences {
  std::span<const std::int32_t> order;
  std::span<const std::int32_t> start;
};

Occurrences sort_by_token(std::span<const std::int32_t> tokens, const VocabularyPart& part,
                          Scratch& scratch) {
  const auto numbers = static_cast<std::int64_t>(tokens.size()) + part.count + 2;
  const auto bytes = embedding_backward_scratch(std::ssize(tokens), part.count);
  const std::span all(reinterpret_cast<std::int32_t*>(scratch.bytes(bytes)),
                      static_cast<std::size_t>(numbers));
  const auto order = all.first(tokens.size());
  const auto ends = all.subspan(tokens.size());  // ends[v + 1] becomes row v's next free slot
  std::ranges::fill(ends, 0);
  for (const auto token : tokens)
    if (part.has(token)) ++ends[static_cast<std::size_t>(part.row_of(token)) + 2];
  for (std::size_t v = 2; v < ends.size(); ++v) ends[v] += ends[v - 1];
  for (std::size_t m = 0; m < tokens.size(); ++m) {
    if (!part.has(tokens[m])) continue;
    auto& place = ends[static_cast<std::size_t>(part.row_of(tokens[m])) + 1];
    order[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(m);
  }
  return {order, ends};
}

/// row = or += the dout rows at `positions`, summed in fp32 and rounded once.
template <class W, class T>
void sum_rows(W* row, std::int64_t cols, const Rows<const T>& dout,
              std::span<const std::int32_t> positions, Accumulate accumulate) {
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    auto total = accumulate == Accumulate::yes ? load(row + i, lanes) : Vec{};
    for (const auto m : positions) total += load(dout[m] + i, lanes);
    store(row + i, total, lanes);
  });
}

template <class W, class T>
void scatter(const Tensor& dtable, const Tensor& dout, const Occurrences& occurrences,
             Accumulate accumulate) {
  const Rows<W> to(dtable);
  const Rows<const T> from(dout);
  for_each_block(dtable.rows(), rows_per_block(dtable.cols(), 65536),
                 [&](std::int64_t first, std::int64_t last) {
                   for (auto v = first; v < last; ++v) {
                     const auto* start = &occurrences.start[static_cast<std::size_t>(v)];
                     const auto positions =
                         occurrences.order.subspan(static_cast<std::size_t>(start[0]),
                                                   static_cast<std::size_t>(start[1] - start[0]));
                     if (accumulate == Accumulate::yes && positions.empty()) continue;
                     sum_rows(to[v], dtable.cols(), from, positions, accumulate);
                   }
                 });
}

}  // namespace

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table, std::int64_t first_row,
               Accumulate accumulate) {
  expects(out.rows() == tokens.numel() && out.cols() == table.cols(), "embedding shapes");
  stream.run([=] {
    check_tokens(tokens, first_row);
    with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
      gather<T>(out, tokens, table, first_row, accumulate);
    });
  });
}

void token_positions(Stream& stream, Tensor ids, Tensor document_starts,
                     const RowPositions& positions) {
  const auto sequence = positions.tokens;
  expects(ids.numel() % sequence == 0, "{} tokens in rows of {}", ids.numel(), sequence);
  stream.run([=] {
    const DocumentStarts starts(document_starts, ids.numel(), positions);
    const auto* start = starts.from(0);
    auto* id = ids.as<std::int32_t>();
    for (std::int64_t m = 0; m < ids.numel(); ++m)
      id[m] = static_cast<std::int32_t>(positions[m % sequence] - (start ? start[m] : 0));
  });
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        std::int64_t first_row, Accumulate accumulate) {
  expects(dout.rows() == tokens.numel() && dout.cols() == dtable.cols(),
          "embedding_backward shapes");
  stream.run([=] {
    thread_local Scratch scratch;
    check_tokens(tokens, first_row);
    const auto occurrences = sort_by_token(tokens.span<std::int32_t>(),
                                           VocabularyPart{first_row, dtable.rows()}, scratch);
    with_type(dtable.dtype(), [&]<class W>(std::type_identity<W>) {
      with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
        scatter<W, T>(dtable, dout, occurrences, accumulate);
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
