#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "ops/cpu/attention_documents.hpp"
#include "ops/cpu/attention_products.hpp"
#include "ops/cpu/attention_softmax.hpp"
#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"

// Score tiles are stored transposed, (keys, queries). The softmax maxima and sums then run down the
// rows, one query per lane, and keys and values are used in place.

namespace llamesh::ops::cpu {
namespace {

constexpr float hidden = -std::numeric_limits<float>::infinity();

/// Query tiles per task, from query heads that share a key-value head and from neighboring query
/// blocks. They share each key and value tile; loading it for each one separately would take a
/// sixth of the time.
constexpr std::int64_t tiles_together = 4;

/// One query tile in one head.
struct QueryTile {
  std::int64_t head;
  QueryBlock block;
  FirstKeys first_keys;
  float* queries;  ///< (E', tile), times Products::of_queries()
  float* out;      ///< (V', tile), not yet divided by row_sum
  float* row_max;  ///< (tile): each query's running maximum score
  float* row_sum;  ///< (tile): each query's running sum of exp2(score - row_max)

  /// Returns whether a query may see a key of the tile that contains `key`.
  bool sees(std::int64_t key) const {
    return key <= block.first && first_keys.begin() < tile_end(key);
  }
};

/// fp32 scratch for one task.
struct Tiles {
  static std::int64_t numel(const PaddedHead& padded) {
    const auto per_row =
        padded.widest() + (1 + tiles_together) * (padded.dims + padded.values) + tile;
    return (per_row + 1 + 2 * tiles_together) * tile + Products::numel(padded.widest());
  }
  Tiles(const AttentionShape& s, const PaddedHead& padded, Bf16Attention::By by, Scratch& scratch)
      : pieces(scratch.array<float>(numel(padded))),
        rows(pieces.take(tile * padded.widest())),
        keys(pieces.take(tile * padded.dims)),
        values(pieces.take(tile * padded.values)),
        scores(pieces.take(tile * tile)),
        rescale(pieces.take(tile)),
        products(by, s, pieces) {}

  Pieces pieces;
  float* rows;     ///< (tile, E' or V'): staging for queries in, results out
  float* keys;     ///< (tile, E')
  float* values;   ///< (tile, V')
  float* scores;   ///< (keys, queries), then their exponentials
  float* rescale;  ///< (tile): factor from the old row_max to the new one
  Products products;
};

/// Sets the score to -infinity for keys after the query, in the diagonal tile's squares that
/// contain both.
void mask_later_keys(float* scores, std::int64_t width) {
  for (std::int64_t q = 0; q < width; q += vec_width)
    for (std::int64_t i = 1; i < vec_width; ++i) {
      auto* at = scores + (q + i) * tile + q;
      store(at, sees(i) ? load(at, Whole{}) : broadcast(hidden), Whole{});
    }
}

/// Sets the score to -infinity for keys, counted from `key`, that precede a query's first one.
void mask_earlier_keys(float* scores, const FirstKeys& first_keys, std::int64_t key,
                       std::int64_t keys, std::int64_t width) {
  for (std::int64_t q = 0; q < width; q += vec_width)
    for (std::int64_t k = 0; k < first_keys.hidden(q, key, keys); ++k) {
      auto* at = scores + k * tile + q;
      store(at, first_keys.see(q, key + k) ? load(at, Whole{}) : broadcast(hidden), Whole{});
    }
}

/// Returns the maximum over `old` and `keys` scores for vec_width queries, in four independent
/// chains.
Vec maximum(Vec old, const float* scores, std::int64_t keys) {
  Vec most[4] = {old, old, old, old};
  for (std::int64_t k = 0; k < keys; k += 4)
    for (std::int64_t i = 0; i < 4; ++i)
      most[i] = cpu::max(most[i], load(scores + (k + i) * tile, Whole{}));
  return cpu::max(cpu::max(most[0], most[1]), cpu::max(most[2], most[3]));
}

/// One online softmax step (Milakov and Gimelshein 2018). Scores become exp2(score - row_max);
/// `rescale` becomes the factor that brings earlier sums to the new maximum. On the diagonal,
/// handles keys up to the end of each query vector.
void online_softmax(const Tiles& t, const QueryTile& queries, std::int64_t keys, std::int64_t width,
                    bool diagonal) {
  for (std::int64_t q = 0; q < width; q += vec_width) {
    const auto seen = diagonal ? q + vec_width : keys;
    const auto old_max = load(queries.row_max + q, Whole{});
    const auto row_max = maximum(old_max, t.scores + q, seen);
    const auto rescale = cpu::exp2(old_max - row_max);
    auto row_sum = load(queries.row_sum + q, Whole{}) * rescale;
    for (std::int64_t k = 0; k < seen; ++k) {
      auto* at = t.scores + k * tile + q;
      const auto e = cpu::exp2(load(at, Whole{}) - row_max);
      row_sum += e;
      store(at, e, Whole{});
    }
    store(t.rescale + q, rescale, Whole{});
    store(queries.row_max + q, row_max, Whole{});
    store(queries.row_sum + q, row_sum, Whole{});
  }
}

/// Caps scores. On the diagonal, handles keys up to the end of each query vector.
void cap(float* scores, const ScoreCap& by, std::int64_t keys, std::int64_t width, bool diagonal) {
  for (std::int64_t q = 0; q < width; q += vec_width)
    for (std::int64_t k = 0; k < (diagonal ? q + vec_width : keys); ++k) {
      auto* at = scores + k * tile + q;
      store(at, by.capped(load(at, Whole{})), Whole{});
    }
}

/// Accumulates the loaded key and value tiles [key, key + keys) into `queries.out`.
template <bool diagonal>
void attend(const Tiles& t, const QueryTile& queries, std::int64_t key, std::int64_t keys,
            const PaddedHead& padded, const ScoreCap& softcap) {
  using U = UpperTriangular;
  const auto skipped = std::max<std::int64_t>(0, queries.first_keys.begin() - key);
  key += skipped;
  keys -= skipped;
  const auto width = queries.first_keys.queries_before(key + keys, queries.block.width());
  t.products.scores<diagonal ? U::c : U::none>(t.scores, tile,
                                               Plain{t.keys + skipped * padded.dims, padded.dims},
                                               queries.queries, tile, keys, width, padded.dims);
  if (softcap) cap(t.scores, softcap, keys, width, diagonal);
  if (diagonal) mask_later_keys(t.scores, width);
  mask_earlier_keys(t.scores, queries.first_keys, key, keys, width);
  online_softmax(t, queries, keys, width, diagonal);
  t.products.multiply<diagonal ? U::b : U::none>(
      queries.out, tile, Transposed{t.values + skipped * padded.values, padded.values}, t.scores,
      tile, padded.values, width, keys, RescaleAndAdd{t.rescale});
}

/// Tensors in the pass, typed.
template <class T>
struct Operands {
  Rows<T> out;
  Rows<const T> q, k, v;
  float* log_sum_exp;
  DocumentStarts starts;
  Bf16Attention::By by = Bf16Attention::By::none;
};

/// Initializes a tile with the queries of its block in a head and sequence b, and zeroes its sums.
template <class T>
void load_queries(QueryTile& queries, Tiles& t, const Operands<T>& o, const AttentionShape& s,
                  std::int64_t b) {
  const PaddedHead padded(s);
  const auto& block = queries.block;
  const auto token = b * s.sequence + block.row;
  queries.first_keys = FirstKeys(o.starts.from(token), block, s.window);
  queries.queries = t.pieces.take(tile * padded.dims);
  queries.out = t.pieces.take(tile * padded.values);
  queries.row_max = t.pieces.take(tile);
  queries.row_sum = t.pieces.take(tile);
  load_queries(t.rows, block, padded.dims, o.q.from(token, queries.head * s.head_dim), s.head_dim,
               t.products.of_queries());
  transpose(queries.queries, tile, t.rows, padded.dims, block.width(), padded.dims);
  std::fill_n(queries.out, padded.values * tile, 0.0F);
  // Finite, so that a query with all keys in a tile hidden gets exp2(-infinity - row_max) = 0.
  std::fill_n(queries.row_max, tile, std::numeric_limits<float>::lowest());
  std::fill_n(queries.row_sum, tile, 0.0F);
}

/// Writes a query tile's results: sums / row_sum, and log_sum_exp.
template <class T>
void store_results(const QueryTile& queries, const Tiles& t, const Operands<T>& o,
                   const AttentionShape& s, std::int64_t b) {
  const auto padded = PaddedHead(s).values;
  const auto& [first, lead, count, row] = queries.block;
  const auto width = queries.block.width();
  for (std::int64_t q = 0; q < width; q += vec_width) {
    const auto inverse = 1.0F / load(queries.row_sum + q, Whole{});
    for (std::int64_t e = 0; e < padded; ++e) {
      auto* at = queries.out + e * tile + q;
      store(at, load(at, Whole{}) * inverse, Whole{});
    }
  }
  transpose(t.rows, padded, queries.out, tile, padded, width);
  store_tile(o.out.from(b * s.sequence + row, queries.head * s.value_dim), count, s.value_dim,
             t.rows + lead * padded, padded);
  auto* log_sum_exp = o.log_sum_exp + (b * s.heads + queries.head) * s.sequence + row;
  for (std::int64_t q = 0; q < count; ++q)
    log_sum_exp[q] = ln_2 * queries.row_max[lead + q] + std::log(queries.row_sum[lead + q]);
}

/// Computes `all`: query tiles in sequence b whose heads share a key-value head.
template <class T>
void attend_together(std::span<QueryTile> all, const Operands<T>& o, const AttentionShape& s,
                     std::int64_t b, std::int64_t kv) {
  thread_local Scratch scratch;
  const PaddedHead padded(s);
  Tiles t(s, padded, o.by, scratch);
  const TileRegisters registers(o.by);
  auto begin = s.keys;
  std::int64_t last = 0;
  for (auto& queries : all) {
    load_queries(queries, t, o, s, b);
    begin = std::min(begin, queries.first_keys.begin());
    last = std::max(last, queries.block.first);
  }
  const ScoreCap softcap(s.softcap);
  for (auto key = begin; key <= last; key = tile_end(key)) {
    if (std::ranges::none_of(all, [&](const auto& queries) { return queries.sees(key); })) continue;
    const auto token = b * s.keys + key;
    const auto valid = std::min(tile_end(key), s.keys) - key;
    const auto keys = round_up(valid, vec_width);
    load_tile(t.keys, keys, padded.dims, o.k.from(token, kv * s.head_dim), valid, s.head_dim);
    load_tile(t.values, keys, padded.values, o.v.from(token, kv * s.value_dim), valid, s.value_dim);
    for (const auto& queries : all)
      if (key == queries.block.first)
        attend<true>(t, queries, key, keys, padded, softcap);
      else if (queries.sees(key))
        attend<false>(t, queries, key, keys, padded, softcap);
  }
  for (const auto& queries : all) store_results(queries, t, o, s, b);
}

/// Returns the query tiles that share a key-value head.
std::int64_t tiles_per_kv_head(const AttentionShape& s) {
  return QueryBlocks(s.positions).size() * (s.heads / s.kv_heads);
}

/// Returns the tasks per key-value head.
std::int64_t tasks_per_kv_head(const AttentionShape& s) {
  return (tiles_per_kv_head(s) + tiles_together - 1) / tiles_together;
}

template <class T>
void all_tiles(const Operands<T>& o, const AttentionShape& s) {
  const auto group = s.heads / s.kv_heads;
  const QueryBlocks blocks(s.positions);
  const auto tiles = tiles_per_kv_head(s), tasks = tasks_per_kv_head(s);
  for_each_task(s.batch * s.kv_heads * tasks, [&](std::int64_t task) {
    const auto kv = task % s.kv_heads;
    const auto b = task / s.kv_heads % s.batch;
    const auto begin = (tasks - 1 - task / s.kv_heads / s.batch) * tiles_together;  // longest first
    const auto count = std::min(tiles_together, tiles - begin);
    std::array<QueryTile, tiles_together> all;
    for (std::int64_t i = 0; i < count; ++i) {
      auto& queries = all[static_cast<std::size_t>(i)];
      queries.head = kv * group + (begin + i) % group;
      queries.block = blocks[(begin + i) / group];
    }
    attend_together(std::span(all).first(static_cast<std::size_t>(count)), o, s, b, kv);
  });
}

}  // namespace

void attention(Stream& stream, const AttentionCall& c) {
  expect_attention_shapes(c);
  stream.run([=] {
    const DocumentStarts starts(c.document_starts, c.q.rows(), c.shape.positions);
    with_type(c.q.dtype(), [&]<class T>(std::type_identity<T>) {
      all_tiles(
          Operands<T>{Rows<T>(c.out), Rows<const T>(c.q), Rows<const T>(c.k), Rows<const T>(c.v),
                      c.log_sum_exp.as<float>(), starts, bf16_attention_of<T>()},
          c.shape);
    });
  });
}

std::int64_t attention_scratch(const AttentionShape& shape, std::int64_t threads) {
  const auto tasks = shape.batch * shape.kv_heads * tasks_per_kv_head(shape);
  return std::min(threads, tasks) * Tiles::numel(PaddedHead(shape)) * size_of(DType::f32);
}

std::string attention_name(Stream& /*stream*/, const AttentionCall& /*call*/) {
  return "the CPU's kernels";
}

}  // namespace llamesh::ops::cpu
