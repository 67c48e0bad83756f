#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/attention/attention.hpp"
#include "ops/cuda/attention/attention_choice.hpp"

struct cudnnContext;  // a cudnnHandle_t points to one

namespace llamesh::ops::cuda {

/// What decides about cuDNN's graphs for attention: shape, and elements from row to row. Gradients
/// lie as what they are the gradients of.
struct CudnnProblem {
  explicit CudnnProblem(const AttentionCall& call);

  std::int64_t batch, sequence, heads, kv_heads, head_dim;
  std::int64_t q_stride, k_stride, v_stride, out_stride;

  auto operator<=>(const CudnnProblem&) const = default;
};

/// One pass of attention as a graph of cuDNN: bf16, causal, sums and softmax in fp32, scaled by
/// 1 / sqrt(E); the backward pass is cuDNN's deterministic one.
///
/// The statistics that the forward pass leaves are max + ln(sum(exp(score - max))) of the scaled
/// scores, which is our log_sum_exp (cudnn_frontend/node/softmax.h: reduce MAX, SUB, EXP, reduce
/// ADD, LOG, ADD of the maximum, after the multiplication by the scale; cuDNN's EXP and LOG are
/// natural), and the backward pass takes exp(score - statistics). So either backward pass may
/// follow either forward pass.
class CudnnGraph {
 public:
  /// For the device of `handle`.
  CudnnGraph(const CudnnProblem& problem, AttentionPass pass, cudnnContext* handle);
  /// For the device that `properties` describe (the JSON of cuDNN's device property descriptor),
  /// which need not be there: for tests.
  CudnnGraph(const CudnnProblem& problem, AttentionPass pass, const std::string& properties);
  ~CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;

  /// Why cuDNN does not have it, in its own words; empty: it can be run.
  const std::string& refusal() const { return refusal_; }
  /// Scratch that it needs.
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

  /// Put into the stream of `handle`. `gradients` are those of the backward pass.
  void run(cudnnContext* handle, const AttentionCall& call, const AttentionGradients& gradients,
           void* scratch) const;

 private:
  void build(const CudnnProblem& problem, AttentionPass pass, cudnnContext* handle,
             const std::string& properties);

  struct Graph;  // cuDNN's
  std::unique_ptr<Graph> graph_;
  std::string refusal_;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace llamesh::ops::cuda
