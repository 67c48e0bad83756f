#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/attention/attention.hpp"
#include "ops/cuda/attention/attention_choice.hpp"

struct cudnnContext;  // pointee of cudnnHandle_t

namespace llamesh::ops::cuda {

/// Key for cuDNN's attention graphs: shape and row strides in elements. Gradients have the same
/// layout as their tensors.
struct CudnnProblem {
  explicit CudnnProblem(const AttentionCall& call);

  std::int64_t batch, sequence, heads, kv_heads, head_dim, value_dim;
  std::int64_t window;  ///< 0: none
  float score_divisor;
  std::int64_t q_stride, k_stride, v_stride, out_stride;

  auto operator<=>(const CudnnProblem&) const = default;
};

/// One attention pass as a cuDNN graph: bf16, causal, fp32 sums and softmax. The backward pass is
/// cuDNN's deterministic one.
///
/// The forward pass stores statistics max + ln(sum(exp(score - max))) over scaled scores, which
/// equals our log_sum_exp. (In cudnn_frontend/node/softmax.h, after scaling: reduce MAX, SUB, EXP,
/// reduce ADD, LOG, ADD the maximum; cuDNN's EXP and LOG are natural.) The backward pass uses
/// exp(score - statistics). So either backward implementation can follow either forward one.
class CudnnGraph {
 public:
  /// Builds for the device behind `handle`.
  CudnnGraph(const CudnnProblem& problem, AttentionPass pass, cudnnContext* handle);
  /// For tests: builds for the device that `properties` describe (cuDNN's device property
  /// descriptor as JSON). The device need not be present.
  CudnnGraph(const CudnnProblem& problem, AttentionPass pass, const std::string& properties);
  ~CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;

  /// Returns cuDNN's reason for not supporting the pass; empty if it can run.
  const std::string& refusal() const { return refusal_; }
  /// Returns the scratch size that it needs.
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

  /// Queues the pass on `handle`'s stream. `gradients` are for the backward pass.
  void run(cudnnContext* handle, const AttentionCall& call, const AttentionGradients& gradients,
           void* scratch) const;

 private:
  void build(const CudnnProblem& problem, AttentionPass pass, cudnnContext* handle,
             const std::string& properties);

  struct Graph;  // cuDNN's graph
  std::unique_ptr<Graph> graph_;
  std::string refusal_;
  std::int64_t scratch_bytes_ = 0;
};

/// cuDNN is loaded at first use rather than linked, so that one binary runs on nodes with and
/// without it: cudnn_library.cpp defines the <cudnn.h> functions that llamesh and cudnn_frontend
/// call, and forwards each call to the library. (cudnn_frontend can load cuDNN itself, but it then
/// also opens a second CUDA runtime and the driver by file name.)
struct CudnnLibrary {
  /// Null if cuDNN cannot be used; none of its functions may then be called.
  void* handle = nullptr;
  /// "cuDNN 9.19.0", or the reason it cannot be used.
  std::string text;
};
const CudnnLibrary& cudnn_library();

}  // namespace llamesh::ops::cuda
