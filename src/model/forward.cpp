#include "model/forward.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {

Residual forward(const BlockContext& x, const ParameterTable& table, const Activations& a,
                 Tensor tokens) {
  Residual hidden{a.blocks.front()->input(), {}};
  {
    const Entered entered(x.weights, table.embed_tokens.module, x.pass);
    // Each rank looks up the tokens that are in its part of the vocabulary.
    const Tensor rows = x.weights.parameter(table.embed_tokens.weight);
    ops::embedding(x.stream, x.tensor.summand(hidden.x), tokens, rows, first_class(x));
    x.stream.wait(x.tensor.reduce(hidden.x));
  }
  for (const auto& block : a.blocks) hidden = block->forward(x, hidden);
  return hidden;
}

Tensor final_norm(const BlockContext& x, const ParameterTable& table, const Activations& a,
                  const Residual& hidden) {
  ops::rms_norm(x.stream, {.x = hidden.x,
                           .delta = hidden.delta,
                           .sum = a.last,
                           .w = x.weights.parameter(table.norm.weight),
                           .eps = static_cast<float>(x.config.rms_norm_eps),
                           .y = a.normed_last,
                           .inverse_rms = a.last_rms});
  return a.normed_last;
}

}  // namespace llamesh::model
