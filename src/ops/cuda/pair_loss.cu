#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Small next to the logits: a document's sum reads the numbers of all tokens, 8 bytes each.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;

/// One document per block.
__global__ void __launch_bounds__(threads)
    sum_documents(float* log_probs, const float* losses, const std::int32_t* documents,
                  std::int64_t count) {
  double sum = 0;
  for (std::int64_t m = threadIdx.x; m < count; m += blockDim.x)
    if (documents[m] == static_cast<std::int32_t>(blockIdx.x)) sum += losses[m];
  sum = block_sum(sum, dynamic_shared_memory<double>());
  if (threadIdx.x == 0) log_probs[blockIdx.x] = -static_cast<float>(sum);
}

struct Pairs {
  float* row_factors;
  float* results;  // (5, P)
  const float *log_probs, *references, *tokens;
  const std::int32_t* documents;
  std::int64_t pairs, rows;
  PairLoss loss;
  float beta;

  __device__ __forceinline__ PairSide side(std::int64_t d) const {
    return {log_probs[d] - references[d], tokens[d]};
  }
  __device__ __forceinline__ PairTerms terms(std::int64_t pair) const {
    return pair_terms(loss, beta, side(2 * pair), side(2 * pair + 1));
  }
};

/// A thread for each token; the first P also have a pair each.
__global__ void __launch_bounds__(threads) compare(Pairs a) {
  const auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.pairs) {
    a.results[i] = a.terms(i).loss;
    a.results[a.pairs + i] = a.log_probs[2 * i];
    a.results[2 * a.pairs + i] = a.log_probs[2 * i + 1];
    a.results[3 * a.pairs + i] = a.beta * a.side(2 * i).ratio;
    a.results[4 * a.pairs + i] = a.beta * a.side(2 * i + 1).ratio;
  }
  if (i >= a.rows) return;
  const auto d = a.documents[i];
  const auto terms = d < 0 ? PairTerms{} : a.terms(d / 2);
  a.row_factors[i] = d % 2 == 0 ? -terms.by_chosen : -terms.by_rejected;
}

}  // namespace

void log_probs_of_documents(Stream& stream, Tensor log_probs, Tensor losses, Tensor documents) {
  expects(losses.numel() == documents.numel(), "{} losses of {} tokens", losses.numel(),
          documents.numel());
  if (log_probs.numel() == 0) return;
  launch(&sum_documents, {log_probs.numel()}, threads, 32 * 8, stream, log_probs.as<float>(),
         static_cast<const float*>(losses.as<float>()),
         static_cast<const std::int32_t*>(documents.as<std::int32_t>()), documents.numel());
}

void pair_losses(Stream& stream, const PairLossCall& c) {
  const auto pairs = c.references.numel() / 2, rows = c.documents.numel();
  expects(c.results.numel() == pair_results * pairs && c.log_probs.numel() == 2 * pairs &&
              c.references.numel() == 2 * pairs && c.tokens.numel() == 2 * pairs &&
              c.row_factors.numel() == rows && pairs <= rows,
          "pair_losses shapes");
  if (rows == 0) return;
  launch(&compare, {divide_up(rows, threads)}, threads, 0, stream,
         Pairs{c.row_factors.as<float>(), c.results.as<float>(), c.log_probs.as<float>(),
               c.references.as<float>(), c.tokens.as<float>(), c.documents.as<std::int32_t>(),
               pairs, rows, c.loss, c.beta});
}

}  // namespace LLAMESH_OPS_CUDA
