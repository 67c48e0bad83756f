#include <cmath>
#include <limits>

#include "ops/cpu/attention_documents.hpp"
#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"

// Tiles of scores are held transposed, (keys, queries): so the maxima and sums of the softmax run
// down the rows of vectors, one query a lane, and keys and values are used as they lie.

namespace llamesh::ops::cpu {
namespace {

/// The tiles of one block of queries of one head; E' is the head dim rounded up to whole vectors.
struct Tiles {
  explicit Tiles(std::int64_t padded, Scratch& scratch)
      : pieces(scratch.array<float>(5 * tile * padded + tile * tile + 2 * tile)),
        rows(pieces.take(tile * padded)),
        queries(pieces.take(tile * padded)),
        keys(pieces.take(tile * padded)),
        values(pieces.take(tile * padded)),
        out(pieces.take(tile * padded)),
        scores(pieces.take(tile * tile)),
        most(pieces.take(tile)),
        total(pieces.take(tile)) {}

  Pieces pieces;
  float* rows;     ///< (tile, E'): queries on their way in, results on their way out
  float* queries;  ///< (E', tile), scaled
  float* keys;     ///< (tile, E')
  float* values;   ///< (tile, E')
  float* out;      ///< (E', tile), not yet divided by `total`
  float* scores;   ///< (keys, queries), then their exponentials
  float* most;     ///< (tile): the running maximum of each query's scores
  float* total;    ///< (tile): the running sum of exp(score - most)
};

/// -infinity where a query of the diagonal tile stands before a key.
void hide_later_keys(float* scores, std::int64_t keys, std::int64_t width) {
  const auto hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t k = 1; k < keys; ++k)
    for (std::int64_t q = 0; q < std::min(k, width); q += vec_width) {
      auto* at = scores + k * tile + q;
      store(at, sees(q, k) ? load(at, Whole{}) : hidden, Whole{});
    }
}

/// -infinity where a key, counted from `key`, stands before a query's document.
void hide_other_documents(float* scores, const FirstKeys& first_keys, std::int64_t key,
                          std::int64_t keys, std::int64_t width) {
  const auto hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t q = 0; q < width; q += vec_width)
    for (std::int64_t k = 0; k < first_keys.hidden(q, key, keys); ++k) {
      auto* at = scores + k * tile + q;
      store(at, first_keys.see(q, key + k) ? load(at, Whole{}) : hidden, Whole{});
    }
}

/// One step of the online softmax: scores become exp(score - most), and what was summed before is
/// brought to the new maximum.
void softmax_step(const Tiles& t, std::int64_t width, std::int64_t keys, std::int64_t padded) {
  for (std::int64_t q = 0; q < width; q += vec_width) {
    const auto old = load(t.most + q, Whole{});
    auto most = old;
    for (std::int64_t k = 0; k < keys; ++k)
      most = cpu::max(most, load(t.scores + k * tile + q, Whole{}));
    const auto shrink = cpu::exp(old - most);
    auto total = load(t.total + q, Whole{}) * shrink;
    for (std::int64_t k = 0; k < keys; ++k) {
      auto* at = t.scores + k * tile + q;
      const auto e = cpu::exp(load(at, Whole{}) - most);
      total += e;
      store(at, e, Whole{});
    }
    store(t.most + q, most, Whole{});
    store(t.total + q, total, Whole{});
    for (std::int64_t e = 0; e < padded; ++e) {
      auto* at = t.out + e * tile + q;
      store(at, load(at, Whole{}) * shrink, Whole{});
    }
  }
}

/// Where one head's part of the tensors begins.
template <class T>
struct Head {
  Rows<T> out;
  Rows<const T> q, k, v;
  const std::int32_t* starts;  ///< of its row's documents, or null
  float* log_sum_exp;
};

/// out = transposed tile of results / sums, and log_sum_exp, of `count` queries.
template <class T>
void finish(const Tiles& t, Rows<T> out, float* log_sum_exp, std::int64_t count,
            std::int64_t head_dim, std::int64_t padded) {
  const auto width = round_up(count, vec_width);
  for (std::int64_t q = 0; q < width; q += vec_width) {
    const auto inverse = 1.0F / load(t.total + q, Whole{});
    for (std::int64_t e = 0; e < padded; ++e) {
      auto* at = t.out + e * tile + q;
      store(at, load(at, Whole{}) * inverse, Whole{});
    }
  }
  transpose(t.rows, padded, t.out, tile, padded, width);
  store_tile(out, count, head_dim, t.rows, padded);
  for (std::int64_t q = 0; q < count; ++q) log_sum_exp[q] = t.most[q] + std::log(t.total[q]);
}

/// The results of queries [first, first + count) of one head.
template <class T>
void block_of_queries(const Head<T>& head, std::int64_t first, std::int64_t count,
                      std::int64_t head_dim) {
  thread_local Scratch scratch;
  const auto padded = round_up(head_dim, vec_width);
  const auto all = round_up(count, vec_width);
  const Tiles t(padded, scratch);
  load_tile(t.rows, all, padded, head.q.from(first), count, head_dim,
            1.0F / std::sqrt(static_cast<float>(head_dim)));
  transpose(t.queries, tile, t.rows, padded, all, padded);
  std::fill_n(t.out, padded * tile, 0.0F);
  // Finite, so that a query of which a tile hides all keys goes on with exp(-infinity - most) = 0.
  std::fill_n(t.most, tile, std::numeric_limits<float>::lowest());
  std::fill_n(t.total, tile, 0.0F);
  const FirstKeys first_keys(head.starts ? head.starts + first : nullptr, count);
  for (auto key = first_keys.begin(); key <= first; key = tile_end(key)) {
    const auto end = std::min(tile_end(key), first + count);
    const auto valid = end - key;
    const auto keys = round_up(valid, vec_width);
    const auto width = first_keys.queries_before(end, all);
    load_tile(t.keys, keys, padded, head.k.from(key), valid, head_dim);
    load_tile(t.values, keys, padded, head.v.from(key), valid, head_dim);
    multiply<Accumulate::no>(t.scores, tile, plain(t.keys, padded), t.queries, tile, keys, width,
                             padded);
    if (key == first) hide_later_keys(t.scores, keys, width);
    hide_other_documents(t.scores, first_keys, key, keys, width);
    softmax_step(t, width, keys, padded);
    multiply<Accumulate::yes>(t.out, tile, transposed(t.values, padded), t.scores, tile, padded,
                              width, keys);
  }
  finish(t, head.out.from(first), head.log_sum_exp + first, count, head_dim, padded);
}

template <class T>
void all_blocks(const Tensor& out, const Tensor& log_sum_exp, const Tensor& q, const Tensor& k,
                const Tensor& v, const DocumentStarts& starts, const AttentionShape& s) {
  const Rows<T> to(out);
  const Rows<const T> queries(q), keys(k), values(v);
  const auto blocks = (s.sequence + tile - 1) / tile;
  for_each_task(s.batch * s.heads * blocks, [&](std::int64_t task) {
    const auto block = blocks - 1 - task / (s.batch * s.heads);  // the longest ones first
    const auto h = task % s.heads;
    const auto b = task / s.heads % s.batch;
    const auto kv = h / (s.heads / s.kv_heads);
    const auto token = b * s.sequence;
    const Head<T> head{to.from(token, h * s.head_dim),
                       queries.from(token, h * s.head_dim),
                       keys.from(token, kv * s.head_dim),
                       values.from(token, kv * s.head_dim),
                       starts.from(token),
                       log_sum_exp.as<float>() + (b * s.heads + h) * s.sequence};
    const auto first = block * tile;
    block_of_queries(head, first, std::min(tile, s.sequence - first), s.head_dim);
  });
}

}  // namespace

void attention(Stream& stream, Tensor out, Tensor log_sum_exp, Tensor q, Tensor k, Tensor v,
               Tensor document_starts, const AttentionShape& shape) {
  expect_attention_shapes(shape, q, k, v);
  expects(same_matrix_shape(out, q) && log_sum_exp.dense() &&
              log_sum_exp.numel() == shape.batch * shape.heads * shape.sequence,
          "attention: shapes of out and log_sum_exp");
  stream.run([=] {
    const DocumentStarts starts(document_starts, q.rows(), shape.sequence);
    with_type(q.dtype(), [&]<class T>(std::type_identity<T>) {
      all_blocks<T>(out, log_sum_exp, q, k, v, starts, shape);
    });
  });
}

}  // namespace llamesh::ops::cpu
