#include "train/metrics.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

bool ends_torn(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() == std::streampos(0)) return false;
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path) : path_(path) {
  const bool torn = ends_torn(path);
  out_.open(path, std::ios::app);
  if (!out_) fail(ExitCode::io_failure, "cannot open {} for writing", path.string());
  if (torn) append("");
}

void MetricsFile::append(const std::string& line) {
  out_ << line << std::endl;  // flushed: what is written is seen, also by a reader beside us
  if (!out_) fail(ExitCode::io_failure, "cannot write to {}: is the disk full?", path_.string());
}

void MetricsFile::write(const StepRecord& r) {
  nlohmann::ordered_json line = {{"step", r.step},
                                 {"loss", r.loss},
                                 {"grad_norm", r.grad_norm},
                                 {"lr", r.lr},
                                 {"tokens", r.tokens},
                                 {"seconds", r.seconds},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"mfu", r.mfu},
                                 {"memory", {{"valley", r.valley}, {"peak", r.peak}}},
                                 {"traffic", r.traffic},
                                 {"traffic_between_nodes", r.traffic_between_nodes}};
  append(line.dump());
}

void MetricsFile::write_validation(std::int64_t step, double loss) {
  append(nlohmann::ordered_json{{"event", "validation"}, {"step", step}, {"loss", loss}}.dump());
}

void MetricsFile::write_event(const std::string& name, std::int64_t step,
                              const std::string& detail) {
  append(nlohmann::ordered_json{{"event", name}, {"step", step}, {"detail", detail}}.dump());
}

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
