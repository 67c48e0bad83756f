#include "ops/cpu/scratch_bytes.hpp"
#include "ops/simulated/kernels.hpp"

namespace llamesh::ops::simulated {
namespace {

double if_added(Accumulate accumulate, const Tensor& to) {
  return accumulate == Accumulate::yes ? bytes_of(to) : 0;
}

/// `name`: the kernel whose scratch it keeps.
void norm_backward(Stream& stream, const char* name, const RowNormBackwardCall& c) {
  keep_cpu_scratch(
      name, cpu::norm_backward_scratch(c.inverse.numel(), c.w.numel() + (c.db ? c.db.numel() : 0)));
  move(stream, bytes_of(c.x, c.w, c.mean, c.inverse, c.dy, c.dx, c.dw, c.db, c.row_sums) +
                   if_added(c.accumulate_dx, c.dx) + if_added(c.accumulate_dw, c.dw) +
                   if_added(c.accumulate_db, c.db));
}

}  // namespace

void quantize_rows(Stream& stream, const Fp8Matrix& q, Tensor x) {
  move(stream, bytes_of(q.values, q.scales, x));
}

void quantize_columns(Stream& stream, const Fp8Matrix& q, Tensor x) {
  // One pass for the maxima, another for the values.
  move(stream, bytes_of(q.values, q.scales, x, x));
}

void requantize_columns(Stream& stream, const Fp8Matrix& q, const Fp8Matrix& w) {
  move(stream, bytes_of(q.values, q.scales, w.values, w.values, w.scales));
}

void dequantize_rows(Stream& stream, Tensor y, const Fp8Matrix& q) {
  move(stream, bytes_of(y, q.values, q.scales));
}

void row_maxima(Stream& stream, Tensor maxima, Tensor x, const Fp8Run& /*run*/) {
  move(stream, bytes_of(maxima, x));
}

void row_scales(Stream& stream, Tensor scales, Tensor maxima, Tensor first_rows) {
  move(stream, bytes_of(scales, maxima, first_rows));
}

void quantize_run(Stream& stream, const Fp8Run& q, Tensor x) {
  move(stream, bytes_of(x, q.values));
}

void quantize_blocks(Stream& stream, const BlockCodes& q, Tensor x, Tensor squares) {
  move(stream, bytes_of(q.bytes, x, squares));
}

void dequantize_blocks(Stream& stream, Tensor y, const BlockCodes& q) {
  move(stream, bytes_of(y, q.bytes));
}

void sum_block_parts(Stream& stream, Tensor y, const BlockCodes& q, Accumulate accumulate) {
  move(stream, bytes_of(y, q.bytes) + if_added(accumulate, y));
}

void add_bias(Stream& stream, Tensor y, Tensor b) {
  move(stream, 2 * bytes_of(y) + bytes_of(b));
}

void column_sums(Stream& stream, Tensor db, Tensor dy, Accumulate accumulate) {
  move(stream, bytes_of(dy, db) + if_added(accumulate, db));
}

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor /*table*/,
               std::int64_t /*first_row*/, Accumulate accumulate) {
  move(stream, 2 * bytes_of(out) + bytes_of(tokens) + if_added(accumulate, out));
}

void token_positions(Stream& stream, Tensor ids, Tensor document_starts,
                     const RowPositions& /*positions*/) {
  move(stream, bytes_of(ids, document_starts));
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        std::int64_t /*first_row*/, Accumulate accumulate) {
  keep_cpu_scratch("embedding_backward",
                   cpu::embedding_backward_scratch(tokens.numel(), dtable.rows()));
  const double written = accumulate == Accumulate::yes ? 2 * bytes_of(dout) : bytes_of(dtable);
  move(stream, bytes_of(dout, tokens) + written);
}

void rms_norm(Stream& stream, const RowNormCall& c) {
  move(stream, bytes_of(c.x, c.delta, c.sum, c.w, c.b, c.y, c.mean, c.inverse, c.row_sums));
}

void layer_norm(Stream& stream, const RowNormCall& c) {
  rms_norm(stream, c);
}

void rms_norm_and_quantize(Stream& stream, const RowNormCall& c, const Fp8Matrix& q) {
  rms_norm(stream, c);
  move(stream, bytes_of(q.values, q.scales));
}

void rms_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  norm_backward(stream, "rms_norm_backward", c);
}

void layer_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  norm_backward(stream, "layer_norm_backward", c);
}

void rms_norm_row_sums(Stream& stream, const RowNormCall& c, Tensor sums) {
  move(stream, bytes_of(c.x, c.delta, c.sum, sums));
}

void rms_norm_backward_row_sums(Stream& stream, const RowNormBackwardCall& c, Tensor sums) {
  move(stream, bytes_of(c.x, c.w, c.inverse, c.dy, sums));
}

void rope(Stream& stream, Tensor x, Tensor cos_sin, Tensor document_starts,
          const RowPositions& positions, Rotation /*rotation*/) {
  const auto table = cos_sin.slice_rows(0, std::min(cos_sin.rows(), positions.tokens));
  move(stream, 2 * bytes_of(x) + bytes_of(table, document_starts));
}

void attention_sinks(Stream& stream, const AttentionSinks& c) {
  move(stream, 2 * bytes_of(c.out, c.log_sum_exp));
}

void attention_sinks_backward(Stream& stream, const AttentionSinks& c,
                              const AttentionSinksGradients& g) {
  move(stream, bytes_of(c.out, c.log_sum_exp, g.dout));
}

void latent_heads(Stream& stream, const LatentHeads& h) {
  move(stream, bytes_of(h.kv, h.k_rope, h.k, h.v));
}

void latent_heads_backward(Stream& stream, const LatentHeads& h) {
  latent_heads(stream, h);
}

void activate(Stream& stream, Tensor out, Tensor x, Activation /*activation*/) {
  move(stream, bytes_of(out, x));
}

void activate_and_quantize(Stream& stream, Tensor out, const Fp8Matrix& q, Tensor x,
                           Activation /*activation*/) {
  move(stream, bytes_of(out, q.values, q.scales, x));
}

void activate_backward(Stream& stream, Tensor dx, Tensor out, Tensor dout, Tensor x,
                       Activation /*activation*/) {
  move(stream, bytes_of(dx, out, dout, x));
}

void xielu(Stream& stream, const XieluCall& c) {
  move(stream, bytes_of(c.out, c.x));
}

void xielu_backward(Stream& stream, const XieluCall& c, const XieluGradients& g) {
  move(stream, bytes_of(c.out, c.x, g.dx, g.dout));
}

void route(Stream& stream, const RouteCall& c) {
  move(stream, bytes_of(c.logits, c.probabilities, c.experts, c.weights, c.log_sum_exp));
}

void route_backward(Stream& stream, const RouteCall& c, const RouteGradients& g) {
  move(stream, bytes_of(c.probabilities, c.experts, g.dweights, g.dprobabilities, g.dlogits) +
                   (g.z_factor != 0 ? bytes_of(c.log_sum_exp) : 0));
}

void sum_routes(Stream& stream, const RouteCall& c, const RouteSums& s) {
  move(stream, bytes_of(c.probabilities, c.experts, c.log_sum_exp) +
                   2 * bytes_of(s.counts, s.probabilities, s.squares));
}

void sort_by_expert(Stream& stream, const ExpertOrder& order, Tensor experts) {
  move(stream, 2 * bytes_of(experts) + bytes_of(order.starts, order.slots, order.places));
}

void dispatch_tokens(Stream& stream, Tensor rows, Tensor /*x*/, Tensor slots) {
  move(stream, 2 * bytes_of(rows) + bytes_of(slots));
}

void combine_tokens(Stream& stream, Tensor y, Tensor rows, Tensor weights, Tensor places,
                    Accumulate accumulate) {
  move(stream, bytes_of(y, rows, weights, places) + if_added(accumulate, y));
}

void weigh_rows_backward(Stream& stream, const WeighRowsBackwardCall& c) {
  move(stream, 2 * bytes_of(c.activated, c.d_up) + bytes_of(c.d_activated, c.weights, c.dweights));
}

void grouped_bias(Stream& stream, Tensor y, Tensor b, Tensor /*starts*/) {
  move(stream, 2 * bytes_of(y) + bytes_of(b));
}

void grouped_bias_backward(Stream& stream, const GroupedBiasBackwardCall& c) {
  const auto passes = static_cast<double>((c.db ? 1 : 0) + (c.dweights ? 1 : 0));
  move(stream, passes * bytes_of(c.dy) + bytes_of(c.weights, c.db, c.b) + 2 * bytes_of(c.dweights) +
                   if_added(c.accumulate, c.db));
}

void gate_rows(Stream& stream, Tensor y, Tensor gates) {
  move(stream, 2 * bytes_of(y, gates));
}

void gate_rows_backward(Stream& stream, Tensor dlogits, Tensor dgates, Tensor gates) {
  move(stream, bytes_of(dlogits, dgates, gates));
}

void cross_entropy(Stream& stream, const CrossEntropyCall& c) {
  // One pass for maximum and sum; with a gradient, another that reads and writes.
  const double passes = c.gradient == WithGradient::yes ? 3 : 1;
  move(stream, passes * bytes_of(c.logits) + bytes_of(c.losses, c.targets));
}

void log_probs_of_documents(Stream& stream, Tensor log_probs, Tensor losses, Tensor documents) {
  move(stream, bytes_of(log_probs, losses, documents));
}

void pair_losses(Stream& stream, const PairLossCall& c) {
  move(stream,
       bytes_of(c.row_factors, c.results, c.log_probs, c.references, c.tokens, c.documents));
}

void cross_entropy_part(Stream& stream, Tensor part, Tensor logits, Tensor targets,
                        std::int64_t /*vocab_start*/) {
  move(stream, bytes_of(part, logits, targets));
}

void cross_entropy_from_parts(Stream& stream, const CrossEntropyCall& c, Tensor parts,
                              std::int64_t /*vocab_start*/) {
  const double passes = c.gradient == WithGradient::yes ? 2 : 0;
  move(stream, passes * bytes_of(c.logits) + bytes_of(c.losses, parts, c.targets));
}

void copy(Stream& stream, Tensor y, Tensor x) {
  move(stream, bytes_of(y, x));
}

void add(Stream& stream, Tensor y, Tensor x) {
  move(stream, 2 * bytes_of(y) + bytes_of(x));
}

void fill(Stream& stream, Tensor y, float /*value*/) {
  move(stream, bytes_of(y));
}

void scale(Stream& stream, Tensor y, float /*factor*/) {
  move(stream, 2 * bytes_of(y));
}

void softcap(Stream& stream, Tensor y, float /*c*/) {
  move(stream, 2 * bytes_of(y));
}

/// Returns the result for zeros.
double sum_of_squares(Stream& stream, const std::vector<Tensor>& xs) {
  for (const Tensor& x : xs) {
    keep_cpu_scratch("sum_of_squares", cpu::reduction_scratch<double>(x.numel()));
    move(stream, bytes_of(x));
  }
  stream.record().wait();
  return 0;
}

float largest_magnitude(Stream& stream, Tensor x) {
  keep_cpu_scratch("largest_magnitude", cpu::reduction_scratch<std::int32_t>(x.numel()));
  move(stream, bytes_of(x));
  stream.record().wait();
  return 0;
}

SquareUnits square_units(Stream& stream, Tensor x, int /*exponent*/) {
  keep_cpu_scratch("sum_of_squares", cpu::reduction_scratch<SquareUnits>(x.numel()));
  move(stream, bytes_of(x));
  stream.record().wait();
  return {};
}

std::uint64_t hash_elements(Stream& stream, Tensor x, ElementNumbers /*numbers*/) {
  move(stream, bytes_of(x));
  stream.record().wait();
  return 0;
}

void adamw(Stream& stream, const AdamwCall& c, const AdamwStep& /*step*/) {
  move(stream, 2 * bytes_of(c.parameter, c.exp_avg, c.exp_avg_sq) + bytes_of(c.gradient, c.copy));
}

void sgd(Stream& stream, const SgdCall& c, const SgdStep& /*step*/) {
  move(stream, 2 * bytes_of(c.parameter, c.momentum_buffer) + bytes_of(c.gradient, c.copy));
}

void scaled_difference(Stream& stream, Tensor y, Tensor a, Tensor b, float /*factor*/) {
  move(stream, bytes_of(y, a, b));
}

void outer_step(Stream& stream, const OuterCall& c, const OuterStep& /*step*/) {
  move(stream, 2 * bytes_of(c.outer, c.momentum, c.parameter) + bytes_of(c.difference, c.copy));
}

void muon_momentum(Stream& stream, const MuonMomentumCall& c, const MuonMomentumStep& /*step*/) {
  move(stream, 2 * bytes_of(c.momentum) + bytes_of(c.gradient, c.update));
}

void matrix_quadratic(Stream& stream, Tensor squared, Tensor x, float /*a*/, float /*b*/,
                      float /*c*/) {
  move(stream, 1.5 * bytes_of(squared) + 0.5 * bytes_of(x));
}

}  // namespace llamesh::ops::simulated
