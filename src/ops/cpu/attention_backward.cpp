#include <algorithm>
#include <cmath>

#include "ops/cpu/attention_documents.hpp"
#include "ops/cpu/attention_products.hpp"
#include "ops/cpu/attention_softmax.hpp"
#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"

// With P = exp(S - log_sum_exp), S = scale Q K^T and D = rowsum(dO * O) per query (Dao 2023,
// algorithm 2):
//   dV += P^T dO,  dS = P * (dO V^T - D),  dK += scale dS^T Q,  dQ = scale dS K.
// With a softcap, S is capped, and dS also takes the cap's slope.
// Each task sums dK and dV for one key-value head in one sequence over its query blocks, in a fixed
// order. If there are few such heads, each is divided among several tasks, whose sums are then
// added in order. As in the forward pass, score tiles are transposed: (keys, queries).

namespace llamesh::ops::cpu {
namespace {

/// Return the elements in a task's sums: dkeys, and with dvalues behind them, in whole tiles and
/// vectors.
std::int64_t dkeys_numel(const AttentionShape& s) {
  return round_up(s.keys, tile) * PaddedHead(s).dims;
}
std::int64_t sums_numel(const AttentionShape& s) {
  return dkeys_numel(s) + round_up(s.keys, tile) * PaddedHead(s).values;
}

/// Returns how many tasks share a key-value head: enough for 16 tasks in all, if each has 8 query
/// blocks or more and all sums fit into 32 MiB. Ignores the number of threads, so results do not
/// depend on it.
std::int64_t parts_of(const AttentionShape& s) {
  constexpr std::int64_t enough_tasks = 16, min_blocks = 8, max_bytes = std::int64_t{32} << 20;
  const auto kv_heads = s.batch * s.kv_heads;
  const auto blocks = s.heads / s.kv_heads * QueryBlocks(s.positions).size();
  return std::max<std::int64_t>(
      1, std::min({(enough_tasks + kv_heads - 1) / kv_heads, blocks / min_blocks,
                   max_bytes / (kv_heads * sums_numel(s) * size_of(DType::f32))}));
}

/// fp32 scratch for one task. S' are the keys, rounded up to whole tiles.
struct Tiles {
  /// Elements without dkeys and dvalues.
  static std::int64_t numel(const AttentionShape& s) {
    const PaddedHead padded(s);
    const auto per_row = 3 * padded.dims + 2 * padded.values + padded.widest() + 2 * tile + 2;
    return sums_numel(s) + tile * per_row + Products::numel(padded.widest());
  }
  /// `sums`: dkeys and dvalues.
  Tiles(const AttentionShape& s, Bf16Attention::By by, float* sums, Scratch& scratch)
      : padded(s),
        pieces(scratch.array<float>(numel(s))),
        keys(pieces.take(dkeys_numel(s))),
        values(pieces.take(sums_numel(s) - dkeys_numel(s))),
        dkeys(sums),
        dvalues(sums + dkeys_numel(s)),
        queries(pieces.take(tile * padded.dims)),
        queries_t(pieces.take(tile * padded.dims)),
        douts(pieces.take(tile * padded.values)),
        douts_t(pieces.take(tile * padded.values)),
        rows(pieces.take(tile * padded.widest())),
        dqueries_t(pieces.take(tile * padded.dims)),
        scores(pieces.take(tile * tile)),
        dscores(pieces.take(tile * tile)),
        log2_sum_exp(pieces.take(tile)),
        delta(pieces.take(tile)),
        products(by, s, pieces) {}

  PaddedHead padded;
  Pieces pieces;
  float *keys, *values;         ///< (S', E') and (S', V')
  float *dkeys, *dvalues;       ///< likewise
  float *queries, *queries_t;   ///< (tile, E') and (E', tile), times Products::of_queries()
  float *douts, *douts_t;       ///< (tile, V') and (V', tile)
  float* rows;                  ///< (tile, E' or V')
  float* dqueries_t;            ///< (E', tile), not yet scaled
  float *scores, *dscores;      ///< (keys, queries)
  float *log2_sum_exp, *delta;  ///< (tile)
  Products products;
};

/// One query head's slice from each tensor.
template <class T>
struct Head {
  Rows<T> dq;
  Rows<const T> q, out, dout;
  const std::int32_t* starts;  ///< document starts for its row, or null
  const float* log_sum_exp;
  float* delta;
};

/// scores = P, dscores = dS = P * (dP - delta), times the cap's slope if `caps`. On the diagonal,
/// handles keys up to the end of each query vector and zeroes those after the query.
template <bool caps>
void softmax_backward(const Tiles& t, std::int64_t keys, std::int64_t width, bool diagonal,
                      const ScoreCap& cap) {
  for (std::int64_t q = 0; q < width; q += vec_width) {
    const auto log2_sum_exp = load(t.log2_sum_exp + q, Whole{});
    const auto delta = load(t.delta + q, Whole{});
    const auto seen = diagonal ? q + vec_width : keys;
    for (std::int64_t k = 0; k < seen; ++k) {
      auto* score = t.scores + k * tile + q;
      auto* dscore = t.dscores + k * tile + q;
      auto s = load(score, Whole{});
      if constexpr (caps) s = cap.capped(s);
      auto p = cpu::exp2(s - log2_sum_exp);
      if (diagonal && k > q) p = sees(k - q) ? p : Vec{};
      store(score, p, Whole{});
      auto ds = p * (load(dscore, Whole{}) - delta);
      if constexpr (caps) ds *= cap.slope(s);
      store(dscore, ds, Whole{});
    }
  }
}

/// Zeroes scores and dscores for keys, counted from `key`, that precede a query's first one.
void clear_earlier_keys(const Tiles& t, const FirstKeys& first_keys, std::int64_t key,
                        std::int64_t keys, std::int64_t width) {
  for (std::int64_t q = 0; q < width; q += vec_width)
    for (std::int64_t k = 0; k < first_keys.hidden(q, key, keys); ++k)
      for (auto* at : {t.scores + k * tile + q, t.dscores + k * tile + q})
        store(at, first_keys.see(q, key + k) ? load(at, Whole{}) : Vec{}, Whole{});
}

/// delta = rowsum(dout * out), from both tiles.
void row_products(float* delta, const float* douts, const float* outs, std::int64_t rows,
                  std::int64_t padded) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Vec products{};
    for (std::int64_t e = 0; e < padded; e += vec_width)
      products += load(douts + r * padded + e, Whole{}) * load(outs + r * padded + e, Whole{});
    delta[r] = cpu::sum(products);
  }
}

/// Loads the block's queries, with their dout, log_sum_exp and delta, into the tiles; zero-pads the
/// rest.
template <class T>
void load_block(const Tiles& t, const Head<T>& head, const QueryBlock& block,
                const AttentionShape& s) {
  const auto [dims, values] = t.padded;
  const auto width = block.width();
  const auto& [first, lead, count, row] = block;
  load_queries(t.queries, block, dims, head.q.from(row), s.head_dim, t.products.of_queries());
  transpose(t.queries_t, tile, t.queries, dims, width, dims);
  load_queries(t.douts, block, values, head.dout.from(row), s.value_dim);
  transpose(t.douts_t, tile, t.douts, values, width, values);
  load_queries(t.rows, block, values, head.out.from(row), s.value_dim);
  row_products(head.delta + row, t.douts + lead * values, t.rows + lead * values, count, values);
  std::fill_n(t.log2_sum_exp, tile, 0.0F);
  std::fill_n(t.delta, tile, 0.0F);
  for (std::int64_t q = 0; q < count; ++q)
    t.log2_sum_exp[lead + q] = log2_e * head.log_sum_exp[row + q];
  std::copy_n(head.delta + row, count, t.delta + lead);
  std::fill_n(t.dqueries_t, dims * tile, 0.0F);
}

/// Accumulates the gradients between the loaded queries and keys [key, key + keys).
template <bool diagonal>
void attend_backward(const Tiles& t, const FirstKeys& first_keys, std::int64_t key,
                     std::int64_t keys, std::int64_t width, const ScoreCap& cap) {
  using U = UpperTriangular;
  constexpr auto a = diagonal ? U::a : U::none;
  constexpr auto b = diagonal ? U::b : U::none;
  constexpr auto c = diagonal ? U::c : U::none;
  const auto [dims, values] = t.padded;
  const auto offset = key * dims, values_offset = key * values;
  t.products.scores<c>(t.scores, tile, Plain{t.keys + offset, dims}, t.queries_t, tile, keys, width,
                       dims);
  t.products.multiply<c>(t.dscores, tile, Plain{t.values + values_offset, values}, t.douts_t, tile,
                         keys, width, values, Overwrite{});
  (cap ? softmax_backward<true> : softmax_backward<false>)(t, keys, width, diagonal, cap);
  clear_earlier_keys(t, first_keys, key, keys, width);
  t.products.multiply<a>(t.dvalues + values_offset, values, Plain{t.scores, tile}, t.douts, values,
                         keys, values, width, Add{});
  t.products.multiply<a>(t.dkeys + offset, dims, Plain{t.dscores, tile}, t.queries, dims, keys,
                         dims, width, Add{});
  t.products.multiply<b>(t.dqueries_t, tile, Transposed{t.keys + offset, dims}, t.dscores, tile,
                         dims, width, keys, Add{});
}

/// Processes one query block in one head: writes its dq, adds to dkeys and dvalues.
template <class T>
void block_of_queries(const Tiles& t, const Head<T>& head, const QueryBlock& block,
                      const AttentionShape& s) {
  const auto padded = t.padded.dims;
  const auto& [first, lead, count, row] = block;
  const auto all = block.width();
  load_block(t, head, block, s);
  const FirstKeys first_keys(head.starts ? head.starts + row : nullptr, block, s.window);
  const ScoreCap cap(s.softcap);
  for (auto key = first_keys.begin(); key <= first; key = tile_end(key)) {
    const auto keys = std::min(tile_end(key), first + all) - key;
    const auto width = first_keys.queries_before(key + keys, all);
    if (key == first)
      attend_backward<true>(t, first_keys, key, keys, width, cap);
    else
      attend_backward<false>(t, first_keys, key, keys, width, cap);
  }
  transpose(t.rows, padded, t.dqueries_t, tile, padded, all);
  store_tile(head.dq.from(row), count, s.head_dim, t.rows + lead * padded, padded,
             1.0F / s.score_divisor);
}

/// All tensors in the pass, typed.
template <class T>
struct Operands {
  Rows<T> dq, dk, dv;
  Rows<const T> dout, q, k, v, out;
  const float* log_sum_exp;
  float* delta;
  DocumentStarts starts;
  Bf16Attention::By by;
};

/// Writes dk and dv for keys [first, first + count) from their sums.
template <class T>
void store_gradients(const Operands<T>& o, const AttentionShape& s, std::int64_t kv_head,
                     const float* sums, std::int64_t first, std::int64_t count) {
  const PaddedHead padded(s);
  const auto key = kv_head / s.kv_heads * s.keys + first;
  const auto head = kv_head % s.kv_heads;
  const auto* const dkeys = sums + first * padded.dims;
  const auto* const dvalues = sums + dkeys_numel(s) + first * padded.values;
  store_tile(o.dk.from(key, head * s.head_dim), count, s.head_dim, dkeys, padded.dims,
             Products::of_dkeys(o.by, s));
  store_tile(o.dv.from(key, head * s.value_dim), count, s.value_dim, dvalues, padded.values);
}

/// Processes query blocks part, part + parts, ... over all query heads of a key-value head
/// (numbered across sequences): writes dq, and their share of dkeys and dvalues to `sums`.
template <class T>
void part_of_kv_head(const Operands<T>& o, const AttentionShape& s, std::int64_t kv_head,
                     std::int64_t part, std::int64_t parts, float* sums) {
  thread_local Scratch scratch;
  const auto b = kv_head / s.kv_heads, kv = kv_head % s.kv_heads;
  const auto length = round_up(s.keys, tile);
  const Tiles t(s, o.by, sums, scratch);
  const TileRegisters registers(o.by);
  const auto token = b * s.sequence, key = b * s.keys;
  load_tile(t.keys, length, t.padded.dims, o.k.from(key, kv * s.head_dim), s.keys, s.head_dim);
  load_tile(t.values, length, t.padded.values, o.v.from(key, kv * s.value_dim), s.keys,
            s.value_dim);
  std::fill_n(sums, sums_numel(s), 0.0F);
  const auto group = s.heads / s.kv_heads;
  const QueryBlocks blocks(s.positions);
  for (auto i = part; i < group * blocks.size(); i += parts) {
    const auto h = kv * group + i / blocks.size();
    const auto at = h * s.head_dim, of_values = h * s.value_dim;
    const auto statistics = (b * s.heads + h) * s.sequence;
    const Head<T> head{o.dq.from(token, at),         o.q.from(token, at),
                       o.out.from(token, of_values), o.dout.from(token, of_values),
                       o.starts.from(token),         o.log_sum_exp + statistics,
                       o.delta + statistics};
    block_of_queries(t, head, blocks[i % blocks.size()], s);
  }
}

/// Runs one task per key-value head.
template <class T>
void whole_kv_heads(const Operands<T>& o, const AttentionShape& s) {
  for_each_task(s.batch * s.kv_heads, [&](std::int64_t kv_head) {
    thread_local Scratch scratch;
    auto* const sums = scratch.array<float>(sums_numel(s));
    part_of_kv_head(o, s, kv_head, 0, 1, sums);
    store_gradients(o, s, kv_head, sums, 0, s.keys);
  });
}

/// Runs several tasks per key-value head, then adds their sums in order, key tile by key tile.
template <class T>
void divided_kv_heads(const Operands<T>& o, const AttentionShape& s, std::int64_t parts) {
  thread_local Scratch scratch;
  const auto kv_heads = s.batch * s.kv_heads, numel = sums_numel(s);
  auto* const sums = scratch.array<float>(kv_heads * parts * numel);
  for_each_task(kv_heads * parts, [&](std::int64_t task) {
    part_of_kv_head(o, s, task / parts, task % parts, parts, sums + task * numel);
  });
  const PaddedHead padded(s);
  const auto tiles = round_up(s.keys, tile) / tile;
  for_each_block(kv_heads * tiles, 1, [&](std::int64_t i, std::int64_t /*last*/) {
    auto* const total = sums + i / tiles * parts * numel;
    const auto first = i % tiles * tile;
    const auto add_parts = [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t part = 1; part < parts; ++part)
        for (auto e = begin; e < begin + count; e += vec_width)
          store(total + e, load(total + e, Whole{}) + load(total + part * numel + e, Whole{}),
                Whole{});
    };
    add_parts(first * padded.dims, tile * padded.dims);
    add_parts(dkeys_numel(s) + first * padded.values, tile * padded.values);
    store_gradients(o, s, i / tiles, total, first, std::min(tile, s.keys - first));
  });
}

}  // namespace

std::int64_t attention_backward_scratch(const AttentionShape& shape, std::int64_t threads) {
  const auto parts = parts_of(shape), tasks = shape.batch * shape.kv_heads * parts;
  const auto working = std::min(threads, tasks);
  const auto tiles = Tiles::numel(shape);
  const auto sums = parts == 1 ? working : tasks;
  return (working * tiles + sums * sums_numel(shape)) * size_of(DType::f32);
}

void attention_backward(Stream& stream, const AttentionCall& c, const AttentionGradients& g) {
  expect_attention_shapes(c);
  expect_attention_shapes(c, g);
  stream.run([=] {
    const auto& shape = c.shape;
    const DocumentStarts starts(c.document_starts, c.q.rows(), shape.positions);
    with_type(c.q.dtype(), [&]<class T>(std::type_identity<T>) {
      const Operands<T> operands{Rows<T>(g.dq),
                                 Rows<T>(g.dk),
                                 Rows<T>(g.dv),
                                 Rows<const T>(g.dout),
                                 Rows<const T>(c.q),
                                 Rows<const T>(c.k),
                                 Rows<const T>(c.v),
                                 Rows<const T>(c.out),
                                 c.log_sum_exp.as<float>(),
                                 g.delta.as<float>(),
                                 starts,
                                 bf16_attention_of<T>()};
      if (const auto parts = parts_of(shape); parts > 1)
        divided_kv_heads(operands, shape, parts);
      else
        whole_kv_heads(operands, shape);
    });
  });
  if (!g.cos_sin) return;
  for (const Tensor& d : {g.dq, g.dk})
    rope(stream, d, g.cos_sin, c.document_starts, c.shape.positions, Rotation::backward);
}

}  // namespace llamesh::ops::cpu
