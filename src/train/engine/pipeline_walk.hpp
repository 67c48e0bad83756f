#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "train/setup/pipeline_schedule.hpp"

namespace llamesh::train {

/// Seconds that a chunk's passes take.
struct PassSeconds {
  double forward, backward;
};

/// Takes all stages of a pipeline through their actions on one clock. A transfer takes no time, and
/// begins when both ends have come to it; each end has so many buffers per direction. Returns the
/// seconds until the last stage is done. `actions_of` gives a stage's list. Throws an internal
/// error if a send meets another receive than its own, or if stages wait for one another in a
/// circle. Pure.
double walk_pipeline(
    const PipelineShape& shape, const PassSeconds& seconds, std::size_t buffers,
    const std::function<std::vector<PipelineAction>(const PipelineShape& shape, int stage)>&
        actions_of = pipeline_actions);

}  // namespace llamesh::train
