#include "model/forward.hpp"

#include "model/embedding_layer.hpp"
#include "model/norm_layer.hpp"

namespace llamesh::model {

Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 Tensor tokens) {
  Residual hidden{a.blocks.front()->input(), {}};
  {
    const UnshardGuard guard(ctx.weights, table.embed_tokens.module, ctx.pass);
    embed(ctx, table.embed_tokens, hidden.x, tokens);
  }
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    if (a.offload) a.offload->before_forward(ctx.stream, i);
    hidden = a.blocks[i]->forward(ctx, hidden);
    if (a.offload && ctx.pass == Pass::forward) a.offload->after_forward(ctx.stream, i);
  }
  return hidden;
}

Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden) {
  rms_norm(ctx, {.x = hidden.x,
                 .delta = hidden.delta,
                 .sum = a.last,
                 .w = ctx.weights.parameter(table.norm.weight),
                 .eps = static_cast<float>(ctx.config.rms_norm_eps),
                 .y = a.normed_last,
                 .inverse_rms = a.last_rms});
  return a.normed_last;
}

}  // namespace llamesh::model
