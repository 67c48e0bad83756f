#pragma once

#include <memory>
#include <optional>

#include "model/layers/expert_parallel.hpp"
#include "model/layers/feed_forward.hpp"
#include "model/layers/router.hpp"
#include "model/layers/shared_expert.hpp"

/// M tokens, N experts of which a token takes k, R rows that this rank's experts take (M k, unless
/// ranks exchange them), F intermediate of an expert on this rank.
namespace llamesh::model {

/// A layer's mixture of experts (Shazeer et al. 2017): y = the sum over the experts e that the
/// router chooses for x of weight_e down_e(f(gate_e(x)) * up_e(x)), plus a shared expert's output
/// if the layer has one. No token is dropped. Experts may have biases; the first tensor rank
/// adds those after `down`.
class Experts final : public FeedForward {
 public:
  /// `table` has the shapes that this rank holds.
  Experts(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
          const LayerTraits& traits);

  /// Tensors with a row for each of R rows, by expert.
  struct Tensors {
    // Kept from the forward to the backward pass.
    Tensor inputs;     ///< (R, D), if ranks exchange rows; otherwise x has them
    Tensor up;         ///< (R, 2 F) gate and up; the backward pass overwrites it with its gradient
    Tensor activated;  ///< (R, F)
    // Shared by all layers in turn.
    Tensor rows;               ///< (R, D) the experts' inputs, outputs or their gradients
    Tensor d_activated;        ///< (R, F)
    Tensor weights, dweights;  ///< (R, 1) fp32
    ops::Fp8Matrix fp8;        ///< of R max(D, F) elements, if products are in FP8
  };
  const Tensors& tensors() const { return tensors_; }
  const ExpertRows& rows() const { return *rows_; }
  const Router& router() const { return router_; }

  void share(const FeedForward& other) override;
  void plan_kept(ArenaAllocator& plan, const PassShape& pass,
                 ActivationCheckpointing checkpointing) override;
  void plan_shared(ArenaAllocator& plan, const PassShape& pass) override;
  NormReader reader() const override { return shared_ ? NormReader::linear : NormReader::other; }
  void forward(const BlockContext& ctx, Tensor x, Tensor y) override;
  void recompute(const BlockContext& ctx, Tensor x) override;
  void backward(const BlockContext& ctx, Tensor x, Tensor dy) override;

 private:
  void multiply(const BlockContext& ctx, const Tensor& y, const Tensor& x,
                ParameterId weight) const;
  void multiply_backward_input(const BlockContext& ctx, const Tensor& dx, const Tensor& dy,
                               ParameterId weight, Accumulate accumulate) const;
  ops::Fp8Matrix fp8_room(const Tensor& rows) const;
  ops::Fp8Matrix in_fp8(const BlockContext& ctx, const Tensor& rows) const;
  void activate_and_multiply(const BlockContext& ctx);
  void take_kept(ArenaAllocator& plan, std::int64_t rows);
  void take_activated(ArenaAllocator& plan, std::int64_t rows);
  void take_shared(ArenaAllocator& plan, std::int64_t rows);
  void place_kept();
  void place_shared();
  void route(const BlockContext& ctx, Tensor x);
  void gate_and_up(const BlockContext& ctx, Tensor x);
  void down_backward(const BlockContext& ctx, Tensor dy);
  void down_bias_backward(const BlockContext& ctx);
  void gate_and_up_backward(const BlockContext& ctx, Tensor x, Tensor dx);
  /// How the experts write what a shared expert writes first.
  Accumulate to_shared() const { return shared_ ? Accumulate::yes : Accumulate::no; }

  ModuleId moe_, experts_;
  std::optional<SharedExpert> shared_;
  Router router_;
  ParameterId gate_proj_, up_proj_, down_proj_;  ///< (N', F, D), (N', F, D), (N', D, F)
  struct Biases {
    ParameterId gate_proj, up_proj, down_proj;  ///< (N', F), (N', F), (N', D)
  };
  std::optional<Biases> biases_;
  ops::Activation activation_;
  std::int64_t intermediate_, hidden_;  ///< F, D
  DType dtype_ = DType::f32;
  bool exchanges_ = false;  ///< R is known only within a pass
  bool has_backward_ = false;
  bool has_fp8_ = false;
  bool keeps_activated_ = false;
  Tensors tensors_;
  std::shared_ptr<ExpertRows> rows_;
  /// Where tensors_ are if ranks exchange rows; otherwise they are in the arena of all activations.
  struct Memory {
    std::shared_ptr<GrowingMemory> kept, activated, shared;
  } memory_;
};

}  // namespace llamesh::model
