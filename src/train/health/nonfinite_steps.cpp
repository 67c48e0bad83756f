#include "train/health/nonfinite_steps.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "core/nan_sign.hpp"

namespace llamesh::train {

std::string NonfiniteSteps::on_nonfinite(std::int64_t step, double loss, double grad_norm,
                                         std::span<const double> losses,
                                         std::span<const double> squared_norms,
                                         std::string_view faults) {
  ++in_a_row_;
  ++in_all_;
  // A non-finite loss makes all gradients non-finite, so gradients only help if all losses are
  // finite.
  auto origin = where("the loss", losses);
  if (origin.empty()) origin = where("the gradient", squared_norms);
  if (!faults.empty()) origin = faults;
  const auto what =
      fmt::format("step {}: loss {}, gradient norm {}{}", step, without_nan_sign(loss),
                  without_nan_sign(grad_norm), origin.empty() ? "" : " (" + origin + ")");
  const bool skips = action_ == OnNonfinite::skip;
  if (!skips || in_a_row_ >= max_in_a_row)
    fail(ExitCode::no_progress, "{}: {}{}", what,
         skips ? fmt::format("the last {} steps made no update, ", in_a_row_) : "",
         !faults.empty()
             ? "a processor or memory is likely to be faulty; start the run again without that node"
         : step == 1
             ? "no update was made before: the weights that the run begins with are not finite "
               "(see llamesh verify FOLDER), or its numbers overflow (precision.parameters)"
             : "the run diverged; lower optimizer.lr or lengthen schedule.warmup_steps");
  return fmt::format(
      "{}: the step is skipped, without an update ({} in a row, {} since the start; the run stops "
      "at {} in a row)",
      what, in_a_row_, in_all_, max_in_a_row);
}

int NonfiniteSteps::first_rank(std::span<const double> losses,
                               std::span<const double> squared_norms) {
  for (const auto by_rank : {losses, squared_norms})
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
      if (!std::isfinite(by_rank[rank])) return static_cast<int>(rank);
  return 0;
}

/// Returns the ranks with a non-finite value; "": none, the sum over the ranks overflowed.
std::string NonfiniteSteps::where(const char* what, std::span<const double> by_rank) const {
  constexpr int max_named = 4;
  std::string names;
  std::int64_t count = 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (std::isfinite(by_rank[rank]) || ++count > max_named) continue;
    names += fmt::format("{}rank {} on {}", count == 1 ? "" : ", ", rank, host_of_[rank]);
  }
  if (count == 0) return {};
  return fmt::format("{} is not finite on {} of {} ranks: {}{}", what, count, by_rank.size(), names,
                     count > max_named ? ", ..." : "");
}

}  // namespace llamesh::train
