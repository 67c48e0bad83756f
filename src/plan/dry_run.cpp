#include "plan/dry_run.hpp"

#include <algorithm>

#include "checkpoint/format/state.hpp"
#include "optim/optimizer.hpp"
#include "optim/outer_optimizer.hpp"
#include "plan/step_plan.hpp"
#include "train/engine/pipeline.hpp"
#include "train/engine/pipeline_walk.hpp"

namespace llamesh::plan {
namespace {

void note_groups(const comm::ParallelDims& dims, const StepPlan& step,
                 std::vector<DryRun::Groups>& groups) {
  if (groups.empty())
    for (const auto& group : step.groups) {
      const int size = dims.group_size(group.along);
      groups.push_back({group.axis, size, dims.ranks() / size, 0});
    }
  for (std::size_t g = 0; g < std::min(groups.size(), step.groups.size()); ++g)
    groups[g].collectives = std::max(groups[g].collectives, step.groups[g].collectives);
}

}  // namespace

DryRun dry_run(const train::Setup& setup, const device::Hardware& hardware,
               const RankClasses& classes) {
  constexpr std::int64_t micro_batches = 4;
  DryRun seen;
  std::vector<comm::CollectiveLog> logs(classes.first.size());
  PlannedRanks ranks(setup, hardware, micro_batches);
  for (std::size_t c = 0; c < logs.size(); ++c) {
    auto& planned = ranks[classes.first[c]];
    note_groups(setup.mesh, planned.plan, seen.groups);
    logs[c] = std::move(planned.log);
  }
  seen.simulated = static_cast<int>(logs.size());
  check_groups_agree(setup.mesh, classes, logs);
  train::walk_pipeline(setup.pipeline, {.forward = 1, .backward = 2}, train::Pipeline::depth);
  train::walk_pipeline(setup.pipeline, {.forward = 1, .backward = 2}, train::Pipeline::depth,
                       train::evaluation_actions);
  check_owned_once(*setup.layout);
  const auto& in = setup.inputs;
  const auto groups = checkpoint::groups_of({.moments = optim::moments_of(in.optimizer),
                                             .outer = optim::outer_tensors_of(in.optimizer.outer),
                                             .gradient_errors = in.sharding.error_feedback,
                                             .frozen = !train::refers_to_base(in)},
                                            *setup.layout);
  seen.checkpoint = check_written_once(*setup.layout, groups);
  return seen;
}

}  // namespace llamesh::plan
