#include "train/health/step_observers.hpp"

#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "train/health/layer_norms.hpp"

namespace llamesh::train {
namespace {

/// Returns a member of each rank's part.
template <class T, class Of>
std::vector<T> by_rank(std::span<const StepPart> parts, Of of) {
  std::vector<T> values;
  for (const auto& part : parts) values.push_back(of(part));
  return values;
}

}  // namespace

StepObservers::StepObservers(const comm::Communicator& world, const Setup& setup, Engine& engine)
    : world_(world),
      inputs_(setup.inputs),
      replicas_(setup.mesh.group_size(setup.mesh.apart())),
      engine_(engine),
      replay_(world, setup, engine),
      stragglers_(setup.topology.host_of),
      nonfinite_(setup.inputs.train.on_nonfinite, setup.topology.host_of) {}

void StepObservers::before_passes(std::int64_t step, std::span<const model::Batch> micro_batches,
                                  float scale, const std::function<void()>& on_progress) {
  if (!replay_.due(step)) return;
  replay_.replay(micro_batches.front(), scale, std::ssize(micro_batches));
  on_progress();
}

bool StepObservers::must_repeat(StepRecord& record, std::span<const StepPart> parts,
                                bool repeated) {
  const auto differences =
      by_rank<std::int64_t>(parts, [](const StepPart& part) { return part.difference; });
  auto line = replay_.judge(record.step, differences,
                            repeated ? OnMismatch::stop : inputs_.debug.on_mismatch);
  if (line.empty()) return false;
  record.healed.push_back(std::move(line));
  return true;
}

void StepObservers::after_passes(StepRecord& record, std::span<const StepPart> parts) {
  record_stragglers(record, parts);
  if (inputs_.model.num_experts > 0) record_experts(record);
  const auto every = inputs_.log.layers_every;
  if (every > 0 && record.step % every == 0) record_layers(record);
  if (record.is_finite())
    nonfinite_.on_finite();
  else
    decide_on_nonfinite(record, parts);
  record.spikes = spikes_.observe(record.step, record.loss, record.grad_norm);
}

void StepObservers::record_stragglers(StepRecord& record, std::span<const StepPart> parts) {
  const auto own =
      by_rank<double>(parts, [](const StepPart& part) { return part.measured.own_seconds; });
  const auto loads =
      by_rank<double>(parts, [](const StepPart& part) { return part.measured.load_per_core; });
  record.stragglers = stragglers_.observe(own, loads);
}

/// Records how the step's tokens were spread over experts.
void StepObservers::record_experts(StepRecord& record) {
  const auto sums = engine_.model.take_router_sums();
  record.experts = expert_balance(
      sums, inputs_.model.router_z_loss_coef > 0,
      inputs_.log.experts == ExpertMetrics::per_layer ? PerLayer::yes : PerLayer::no);
  record.idle_experts = idle_experts_.observe(sums);
}

void StepObservers::record_layers(StepRecord& record) {
  auto norms = layer_norms(world_, engine_.state, replicas_);
  record.layer_grad_norm = std::move(norms.gradients);
  record.layer_weight_norm = std::move(norms.weights);
}

/// Ends the run, or sets the reason for skipping the update.
void StepObservers::decide_on_nonfinite(StepRecord& record, std::span<const StepPart> parts) {
  const auto losses = by_rank<double>(parts, [](const StepPart& part) { return part.loss; });
  const auto squared_norms =
      by_rank<double>(parts, [](const StepPart& part) { return part.squared_norm; });
  comm::agree(world_, [&] {  // all ranks have the same values, one reports an error
    try {
      record.skipped = nonfinite_.on_nonfinite(record.step, record.loss, record.grad_norm, losses,
                                               squared_norms, replay_.healed());
    } catch (const Error& error) {
      if (world_.rank() == NonfiniteSteps::first_rank(losses, squared_norms)) throw;
      throw comm::PeerFailure(error.code());
    }
  });
}

}  // namespace llamesh::train
