#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor.hpp"
#include "ops/calls.hpp"

/// B sequences of S tokens, of which this rank has T in a row; M = B T, K kv heads, E dims in a key
/// and V in a value.
namespace llamesh::model {

/// Keys and values, or their gradients.
struct KeysValues {
  Tensor keys, values;
};

/// Context parallelism as the model sees it (Dubey et al. 2024, section 3.3.2): a group of c ranks
/// that divide each sequence. Everything but attention needs only its own tokens. For attention a
/// rank gathers all keys and values of the layer, and adds up their gradients over the ranks.
///
/// A sequence has 2 c pieces. Rank i has pieces i and 2 c - 1 - i, one after the other in its row,
/// so that each rank computes the same share of causal attention. sharding::MeshContextParallel
/// implements it over a mesh axis; WholeSequences is a single rank that has every token.
///
/// Calls run after the work already in the compute stream, and later work there sees their results.
class ContextParallel {
 public:
  using Meanwhile = std::function<void()>;

  virtual ~ContextParallel() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  /// Returns the positions of the tokens in this rank's rows, of `tokens` each.
  ops::RowPositions positions(std::int64_t tokens) const {
    return positions_of(rank(), size(), tokens);
  }
  static ops::RowPositions positions_of(int rank, int ranks, std::int64_t tokens) {
    const auto piece = tokens / 2;
    return {tokens, rank * piece, (2 * ranks - 1 - rank) * piece};
  }

  /// Returns keys (B S, K E) and values (B S, K V) of whole sequences, from each rank's `mine`, M
  /// rows. Valid until the next call. Calls meanwhile() to queue work that overlaps with the
  /// gather.
  virtual KeysValues gather(const KeysValues& mine, const Meanwhile& meanwhile) = 0;
  /// Returns likewise: room for this rank's gradients of what gather() returned, to be reduced
  /// into `mine`.
  virtual KeysValues gradients(const KeysValues& mine) = 0;
  /// mine = the sum of all ranks' gradients() for this rank's tokens. Calls
  /// meanwhile() to queue work that overlaps with the reduction.
  virtual void reduce(const KeysValues& mine, const Meanwhile& meanwhile) = 0;

  /// values (fp32) = their sum over the ranks.
  virtual void sum(const Tensor& values) = 0;
};

/// A single rank with whole sequences: no communication, no copies.
class WholeSequences final : public ContextParallel {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  KeysValues gather(const KeysValues& mine, const Meanwhile& meanwhile) override {
    meanwhile();
    return mine;
  }
  KeysValues gradients(const KeysValues& mine) override { return mine; }
  void reduce(const KeysValues& /*mine*/, const Meanwhile& meanwhile) override { meanwhile(); }
  void sum(const Tensor& /*values*/) override {}
};

inline WholeSequences& whole_sequences() {
  static WholeSequences instance;
  return instance;
}

}  // namespace llamesh::model
