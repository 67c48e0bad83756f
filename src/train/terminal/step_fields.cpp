#include "train/terminal/step_fields.hpp"

#include <fmt/format.h>

namespace llamesh::train {

std::vector<std::string> fields(const StepRecord& r, std::int64_t total_steps) {
  const auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return {
      fmt::format("step {:>{}}/{}", r.step, fmt::formatted_size("{}", total_steps), total_steps),
      fmt::format("loss {:.4f}", r.loss),
      fmt::format("{:.0f} tokens/s", r.tokens_per_second),
      fmt::format("MFU {:.0f} %", 100 * r.mfu),
      fmt::format("grad norm {:.3f}", r.grad_norm),
      fmt::format("lr {:.2e}", r.lr),
      fmt::format("memory {:.1f}/{:.1f} MiB", mebibytes(r.valley), mebibytes(r.peak))};
}

}  // namespace llamesh::train
