#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "train/engine/engine.hpp"
#include "train/health/expert_balance.hpp"
#include "train/health/nonfinite_steps.hpp"
#include "train/health/replay_check.hpp"
#include "train/health/spikes.hpp"
#include "train/health/stragglers.hpp"
#include "train/records/step_part.hpp"
#include "train/records/step_record.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Observers of a rank's training steps: they look at a step's passes and at what the ranks have
/// exchanged about them, fill the record, ask for other passes, or end the run. A trainer calls
/// them in the order of the functions; all ranks get the same parts and answers.
class StepObservers {
 public:
  /// Borrows all arguments.
  StepObservers(const comm::Communicator& world, const Setup& setup, Engine& engine);

  /// Prepares for the passes of step `step` over these micro-batches. Computes the first one ahead
  /// of them if it is due for a replay.
  void before_passes(std::int64_t step, std::span<const model::Batch> micro_batches, float scale,
                     const std::function<void()>& on_progress);
  void after_micro_batch() { replay_.on_micro_batch(); }
  /// Adds what this rank has seen in the passes to its part.
  void contribute(StepPart& mine) const { mine.difference = replay_.difference(); }
  /// Returns true if the passes must be computed again; `repeated`: they were already. Throws if a
  /// difference is not to be healed. Collective.
  bool must_repeat(StepRecord& record, std::span<const StepPart> parts, bool repeated);
  /// Looks at a step whose passes stand, before its update. A step that is not finite ends the run,
  /// or its record says why it is skipped. Collective.
  void after_passes(StepRecord& record, std::span<const StepPart> parts);

  const ReplayCheck& replay() const { return replay_; }

 private:
  void record_stragglers(StepRecord& record, std::span<const StepPart> parts);
  void record_experts(StepRecord& record);
  void record_layers(StepRecord& record);
  void decide_on_nonfinite(StepRecord& record, std::span<const StepPart> parts);

  const comm::Communicator& world_;
  const Inputs& inputs_;
  int replicas_;  ///< that train apart
  Engine& engine_;
  ReplayCheck replay_;
  Stragglers stragglers_;
  IdleExperts idle_experts_;
  NonfiniteSteps nonfinite_;
  Spikes spikes_;
};

}  // namespace llamesh::train
