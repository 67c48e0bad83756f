#include "train/step/gemm_peak.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "ops/gemm_rate.hpp"

namespace llamesh::train {
namespace {

constexpr double steady = 0.8;  ///< minimum ratio of median to best window; 0.95 on a quiet machine

}  // namespace

GemmPeak::GemmPeak(std::function<std::vector<double>()> measure) : measure_(std::move(measure)) {
  measure_again();
}

void GemmPeak::measure_again() {
  auto rates = measure_();
  expects(!rates.empty(), "no GEMM rate was measured");
  std::ranges::sort(rates);
  rate_ = rates.back();
  median_ = rates[rates.size() / 2];
}

std::string GemmPeak::describe() const {
  std::string text = fmt::format("GEMM peak {:.0f} GFLOP/s", rate_ / 1e9);
  if (median_ < steady * rate_)
    text += fmt::format(" (uncertain, half of the time below {:.0f}: other work on these cores?)",
                        median_ / 1e9);
  return text;
}

bool GemmPeak::observe(double rate) {
  if (rate <= rate_) return false;
  for (const double again : measure_()) rate = std::max(rate, again);
  rate_ = rate;
  return true;
}

double GemmPeak::utilization(double rate) const {
  return std::min(1.0, rate / rate_);
}

std::vector<double> measured_gemm_rates(const comm::Communicator& world, DType dtype) {
  auto rates = ops::measured_gemm_rates(dtype, [&] { world.barrier(); });
  for (double& rate : rates) rate = world.sum(rate);
  return rates;
}

}  // namespace llamesh::train
