#include "train/run/resume.hpp"

#include "checkpoint/format/format.hpp"
#include "checkpoint/store/store.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "data/fingerprint.hpp"
#include "model/description/config_json.hpp"
#include "train/setup/mesh_reproducible.hpp"

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

/// Returns advice for users who intend the new data or model, which the text calls `new_ones`.
std::string way_to_use(const char* new_ones, const OwnRun& own) {
  if (own.step_on_disk < 0)
    return fmt::format(
        "to start again with {}, set another run.name (that step is only in the nodes' memory)",
        new_ones);
  const auto path = own.checkpoints / checkpoint::name_of_step(own.step_on_disk);
  return fmt::format("to continue with {}, set another run.name and checkpoint.resume={}", new_ones,
                     path.string());
}

/// Returns advice for users who intend the new model, if the checkpoint's weights do not fit it.
std::string way_to_train(const model::ModelConfig& then, const model::ModelConfig& now,
                         bool is_own) {
  if (model::have_same_parameters(then.base(), now.base()))
    return fmt::format(
        "to change the adapters, export the checkpoint with llamesh convert{} and start a new run "
        "from that folder (model.hf)",
        then.lora ? " --merge" : "");
  return is_own ? "to start again with this one, set another run.name"
                : "to start with this one, leave checkpoint.resume out";
}

/// Returns the checkpoint's model; empty if the checkpoint does not say, or not in our words.
std::optional<model::ModelConfig> model_of(const checkpoint::TrainState& saved) {
  if (saved.model_config.empty()) return std::nullopt;
  try {
    return model::parse_config_json(saved.model_config, "the checkpoint's model");
  } catch (const Error& error) {
    spdlog::warn("the models are not compared: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

void check_model(const checkpoint::TrainState& saved, const model::ModelConfig& now,
                 const std::optional<OwnRun>& own) {
  const auto then = model_of(saved);
  if (!then) return;
  const auto change = model::difference(*then, now);
  if (change.empty()) return;
  const bool fits = model::have_same_parameters(*then, now);
  if (own || !fits)
    fail(ExitCode::bad_input, "the model has changed since step {}: {}; set it back, or, {}",
         saved.step, change,
         fits ? way_to_use("this one", *own) : way_to_train(*then, now, own.has_value()));
  spdlog::warn(
      "the model differs from that of the checkpoint: {}; the run continues with the new one",
      change);
}

void warn_of_other_arithmetic(const checkpoint::TrainState& saved, const Inputs& in) {
  const auto here = arithmetic_of(in);
  if (!saved.arithmetic.empty() && saved.arithmetic != here)
    spdlog::warn(
        "the checkpoint's steps were computed by {}, this launch computes by {}: its bits may "
        "differ "
        "from those that would have followed there",
        printable(saved.arithmetic), here);
  if (saved.llamesh_version != version())
    spdlog::warn(
        "the checkpoint is of llamesh {}, and this is {}: the bits may differ from those that "
        "would "
        "have followed there",
        printable(saved.llamesh_version), version());
}

void require_data(const checkpoint::TrainState& saved, const DataOfRun& now) {
  if (saved.step == 0) return;
  const auto change = change_since(saved, now);
  if (!change.empty())
    fail(ExitCode::bad_input,
         "the training data are not those that the run was trained on: {}; restore them", change);
}

void check_data(const checkpoint::TrainState& saved, const DataOfRun& now,
                const std::optional<OwnRun>& own) {
  if (saved.step == 0) return;
  const auto change = change_since(saved, now);
  if (change.empty()) return;
  if (own)
    fail(ExitCode::bad_input,
         "the training data have changed since step {}: {}; restore them, or, {}", saved.step,
         change, way_to_use("these", *own));
  spdlog::warn(
      "the training data differ from those of the checkpoint: {}; the run continues with the new "
      "ones",
      change);
}

}  // namespace llamesh::train
