#include "train/resume.hpp"

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
             "run.name, or remove the folder to start anew",
             newest);
  });
  spdlog::info("the run goes on from its own checkpoints, not from {}", asked);
  return "auto";
}

void check_continues(const checkpoint::Progress& saved, const Inputs& in) {
  validate(saved.step == 0 || saved.seed == in.run.seed,
           "the checkpoint was made with run.seed {}, not {}: its data would be seen in another "
           "order; keep the seed, or start anew under another run.name",
           saved.seed, in.run.seed);
  const auto step_tokens = in.train.global_batch * in.data.sequence_length;
  validate(
      saved.tokens == saved.step * step_tokens,
      "the checkpoint has seen {} tokens in {} steps, but train.global_batch {} x "
      "data.sequence_length {} makes {}: data would be skipped or seen twice; set them as they "
      "were",
      saved.tokens, saved.step, in.train.global_batch, in.data.sequence_length,
      saved.step * step_tokens);
}

void check_data(const checkpoint::Progress& saved, const std::string& now,
                const std::filesystem::path& own) {
  if (saved.step == 0 || saved.data.empty() || saved.data == now) return;
  const auto then = data::parse_fingerprint(saved.data);
  const auto here = data::parse_fingerprint(now);
  expects(here.has_value(), "a fingerprint that cannot be read: {}", now);
  if (!then) {
    spdlog::warn(
        "what the checkpoint says of its training data is not known to this llamesh: they are not "
        "compared");
    return;
  }
  const auto change = data::difference(*then, *here);
  if (change.empty()) return;
  validate(own.empty(),
           "the training data have changed since step {}: {}; put them back as they were, or, to "
           "go on with these, give the run another run.name and checkpoint.resume={}",
           saved.step, change, own.string());
  spdlog::warn("the training data are not those of the checkpoint: {}; the run goes on with these",
               change);
}

}  // namespace llamesh::train
