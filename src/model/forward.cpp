#include "model/forward.hpp"

#include "model/embedding_layer.hpp"
#include "model/norm_layer.hpp"

namespace llamesh::model {

Residual forward(const BlockContext& x, const ParameterTable& table, const Activations& a,
                 Tensor tokens) {
  Residual hidden{a.blocks.front()->input(), {}};
  {
    const Entered entered(x.weights, table.embed_tokens.module, x.pass);
    embed(x, table.embed_tokens, hidden.x, tokens);
  }
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    if (a.offload) a.offload->before_forward(x.stream, i);
    hidden = a.blocks[i]->forward(x, hidden);
    if (a.offload && x.pass == Pass::forward) a.offload->after_forward(x.stream, i);
  }
  return hidden;
}

Tensor final_norm(const BlockContext& x, const ParameterTable& table, const Activations& a,
                  const Residual& hidden) {
  rms_norm(x, {.x = hidden.x,
               .delta = hidden.delta,
               .sum = a.last,
               .w = x.weights.parameter(table.norm.weight),
               .eps = static_cast<float>(x.config.rms_norm_eps),
               .y = a.normed_last,
               .inverse_rms = a.last_rms});
  return a.normed_last;
}

}  // namespace llamesh::model
