#include "train/engine/flops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.hpp"
#include "ops/gemm_rate.hpp"

namespace llamesh::train {
namespace {

/// Returns the keys that count for each query of a layer: T, or with a window W < T twice those
/// that it sees on average, W (2 - W / T).
double counted_keys(std::int64_t window, std::int64_t sequence) {
  const auto T = static_cast<double>(sequence), W = static_cast<double>(window);
  return window == 0 || window >= sequence ? T : W * (2 - W / T);
}

double attention_flops(const model::ModelConfig& c, const model::ParameterTable& table,
                       std::int64_t sequence) {
  double keys = 0;  // a third for the forward pass
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    keys += counted_keys(c.window(i), sequence) / (table.has_backward(i) ? 1 : 3);
  return 6.0 * static_cast<double>(c.num_attention_heads * (c.head_dim + c.value_dim())) * keys;
}

constexpr double steady = 0.8;  ///< minimum ratio of median to best window; 0.95 on a quiet machine

}  // namespace

double matmul_flops_per_token(const model::ParameterTable& table) {
  double products = 0;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto& parameter = table[id];
    const bool is_head = id == table.lm_head.weight;
    if (!table.multiplies(id)) continue;
    const bool has_backward = is_head || parameter.module >= table.backward_end();
    const int count = 1 + (has_backward ? 1 : 0) + (parameter.frozen ? 0 : 1);
    products += static_cast<double>(count) * static_cast<double>(parameter.active_numel());
  }
  return 2 * products;
}

double flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                       std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, table, sequence);
}

double causal_flops_per_token(const model::ModelConfig& config, const model::ParameterTable& table,
                              std::int64_t sequence) {
  return matmul_flops_per_token(table) + attention_flops(config, table, sequence) / 2;
}

GemmPeak::GemmPeak(std::function<std::vector<double>()> measure) : measure_(std::move(measure)) {
  measure_again();
}

void GemmPeak::measure_again() {
  auto rates = measure_();
  expects(!rates.empty() || best_ > 0, "no GEMM rate was measured");
  if (rates.empty()) return;
  std::ranges::sort(rates);
  best_ = std::max(best_, rates.back());
  median_ = rates[rates.size() / 2];
}

double GemmPeak::rate() const {
  return std::max(best_, fastest_step_);
}

bool GemmPeak::is_sure() const {
  return median_ >= steady * best_ && fastest_step_ <= best_;
}

std::string GemmPeak::describe() const {
  std::string text = fmt::format("GEMM peak {:.0f} GFLOP/s", rate() / 1e9);
  if (!is_sure())
    text += fmt::format(
        " (unsure, half of the time below {:.0f}: other work on these cores? No MFU until it is "
        "sure)",
        median_ / 1e9);
  return text;
}

bool GemmPeak::observe(double rate) {
  const bool was_sure = is_sure();
  fastest_step_ = std::max(fastest_step_, rate);
  if (was_sure && is_sure()) return false;
  unsure_steps_ = was_sure ? 0 : unsure_steps_ + 1;
  if (!was_sure && !std::has_single_bit(unsure_steps_)) return false;
  measure_again();
  return true;
}

std::optional<double> GemmPeak::utilization(double rate) const {
  if (!is_sure()) return {};
  return std::min(1.0, rate / best_);
}

std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype) {
  auto rates = ops::measured_gemm_rates(dtype, [&] { world.barrier(); });
  for (double& rate : rates) rate = world.sum(rate);
  return rates;
}

}  // namespace llamesh::train
