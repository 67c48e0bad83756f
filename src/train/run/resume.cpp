#include "train/run/resume.hpp"

#include "checkpoint/format.hpp"
#include "checkpoint/store.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "data/fingerprint.hpp"

namespace llamesh::train {

std::string resume_mode(const comm::Communicator& world, const std::string& asked,
                        const std::filesystem::path& own_checkpoints) {
  const auto newest = comm::on_rank_0(world, [&] {
    const auto own = checkpoint::committed_checkpoints(own_checkpoints);
    return own.empty() ? std::string() : own.front().string();
  });
  if (newest.empty() || asked == "auto") return asked;
  comm::agree(world, [&] {
    validate(asked != "none",
             "checkpoint.resume is none, but this run has saved {} already; choose another "
             "run.name, or remove the folder to start again",
             newest);
  });
  spdlog::info("the run resumes from its own checkpoints, not from {}", asked);
  return "auto";
}

namespace {

/// Describes the change for the user; empty if nothing has changed, as far as known.
std::string change_since(const checkpoint::TrainState& saved, const DataOfRun& now) {
  if (saved.seed != now.seed) return fmt::format("run.seed is {}; it was {}", now.seed, saved.seed);
  if (saved.data.empty()) return "";
  const auto then = data::parse_fingerprint(saved.data);
  const auto here = data::parse_fingerprint(now.fingerprint);
  expects(here.has_value(), "a fingerprint that cannot be read: {}", now.fingerprint);
  if (then) return data::difference(*then, *here);
  spdlog::warn(
      "this llamesh does not understand how the checkpoint describes its training data: they are "
      "not compared");
  return "";
}

std::string way_to_use_new_data(const OwnRun& own) {
  if (own.step_on_disk < 0)
    return "start again with these, set another run.name (that step is only in the nodes' memory)";
  const auto path = own.checkpoints / checkpoint::name_of_step(own.step_on_disk);
  return fmt::format("continue with these, set another run.name and checkpoint.resume={}",
                     path.string());
}

}  // namespace

void check_data(const checkpoint::TrainState& saved, const DataOfRun& now,
                const std::optional<OwnRun>& own) {
  if (saved.step == 0) return;
  const auto change = change_since(saved, now);
  if (change.empty()) return;
  if (own)
    fail(ExitCode::bad_input,
         "the training data have changed since step {}: {}; restore them, or, to {}", saved.step,
         change, way_to_use_new_data(*own));
  spdlog::warn(
      "the training data differ from those of the checkpoint: {}; the run continues with the new "
      "ones",
      change);
}

}  // namespace llamesh::train
