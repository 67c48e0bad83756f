#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/attention/attention.hpp"

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

/// Attention in both directions as graphs of cuDNN, built together, so that both directions can be
/// had or none. bf16, causal, sums and softmax in fp32, scaled by 1 / sqrt(E); the backward pass is
/// cuDNN's deterministic one.
///
/// The statistics that the forward pass leaves are max + ln(sum(exp(score - max))) of the scaled
/// scores, which is our log_sum_exp (cudnn_frontend/node/softmax.h: reduce MAX, SUB, EXP, reduce
/// ADD, LOG, ADD of the maximum, after the multiplication by the scale; cuDNN's EXP and LOG are
/// natural), and the backward pass takes exp(score - statistics). So either backward pass may
/// follow either forward pass.
class CudnnGraphs {
 public:
  /// For the device of `handle`.
  CudnnGraphs(const CudnnProblem& problem, cudnnContext* handle);
  /// For the device that `properties` describe (the JSON of cuDNN's device property descriptor),
  /// which need not be there: for tests.
  CudnnGraphs(const CudnnProblem& problem, const std::string& properties);
  ~CudnnGraphs();
  CudnnGraphs(const CudnnGraphs&) = delete;
  CudnnGraphs& operator=(const CudnnGraphs&) = delete;

  /// cuDNN's words for each that it does not have; empty: they can be run.
  const std::string& refusal() const { return refusal_; }
  /// Scratch that a pass needs.
  std::int64_t forward_bytes() const { return forward_bytes_; }
  std::int64_t backward_bytes() const { return backward_bytes_; }

  /// Put into the stream of `handle`.
  void forward(cudnnContext* handle, const AttentionCall& call, void* workspace) const;
  void backward(cudnnContext* handle, const AttentionCall& call,
                const AttentionGradients& gradients, void* workspace) const;

 private:
  struct Graphs;
  void build_both(const CudnnProblem& problem, cudnnContext* handle, const std::string& properties);

  std::unique_ptr<Graphs> graphs_;
  std::string refusal_;
  std::int64_t forward_bytes_ = 0;
  std::int64_t backward_bytes_ = 0;
};

}  // namespace llamesh::ops::cuda
