#include <algorithm>
#include <span>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

void check_tokens(const Tensor& tokens, std::int64_t vocabulary) {
  for (const auto token : tokens.span<std::int32_t>())
    expects(token >= 0 && token < vocabulary, "token {} in a vocabulary of {}", token, vocabulary);
}

template <class T>
void gather(const Tensor& out, const Tensor& tokens, const Tensor& table) {
  const auto cols = table.cols();
  const auto* token = tokens.as<std::int32_t>();
  const Rows<T> to(out);
  const Rows<const T> from(table);
  for_each_block(tokens.numel(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) std::copy_n(from[token[m]], cols, to[m]);
  });
}

/// The positions of the tokens sorted by token (a stable counting sort): those of token v are
/// order[start[v], start[v + 1]), in token order.
struct Occurrences {
  std::span<const std::int32_t> order;
  std::span<const std::int32_t> start;
};

Occurrences sort_by_token(std::span<const std::int32_t> tokens, std::int64_t vocabulary,
                          Scratch& scratch) {
  const auto numbers = static_cast<std::int64_t>(tokens.size()) + vocabulary + 2;
  const std::span all(scratch.array<std::int32_t>(numbers), static_cast<std::size_t>(numbers));
  const auto order = all.first(tokens.size());
  const auto ends = all.subspan(tokens.size());  // ends[v + 1] becomes the next place of token v
  std::ranges::fill(ends, 0);
  for (const auto token : tokens) ++ends[static_cast<std::size_t>(token) + 2];
  for (std::size_t v = 2; v < ends.size(); ++v) ends[v] += ends[v - 1];
  for (std::size_t m = 0; m < tokens.size(); ++m) {
    auto& place = ends[static_cast<std::size_t>(tokens[m]) + 1];
    order[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(m);
  }
  return {order, ends};
}

/// row = or += the sum of the dout rows at `positions`, rounded once.
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

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table) {
  expects(out.rows() == tokens.numel() && out.cols() == table.cols(), "embedding shapes");
  stream.run([=] {
    check_tokens(tokens, table.rows());
    with_type(out.dtype(), [&]<class T>(std::type_identity<T>) { gather<T>(out, tokens, table); });
  });
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        Accumulate accumulate) {
  expects(dout.rows() == tokens.numel() && dout.cols() == dtable.cols(),
          "embedding_backward shapes");
  stream.run([=] {
    thread_local Scratch scratch;
    check_tokens(tokens, dtable.rows());
    const auto occurrences = sort_by_token(tokens.span<std::int32_t>(), dtable.rows(), scratch);
    with_type(dtable.dtype(), [&]<class W>(std::type_identity<W>) {
      with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
        scatter<W, T>(dtable, dout, occurrences, accumulate);
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
