#include "train/engine/pipeline_walk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

using Kind = PipelineAction::Kind;

bool is_pass(const PipelineAction& action) {
  return action.kind == Kind::forward || action.kind == Kind::backward;
}

/// Shapes of up to 8 stages with up to 4 chunks each, and few to many micro-batches.
std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (int stages = 2; stages <= 8; ++stages)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (const int micro_batches : {1, 2, 3, 5, 8, 16, 24, 3 * stages, 4 * stages}) {
        const int rounds = std::max(1, micro_batches / stages);
        if (chunks == 1 || micro_batches % rounds == 0)
          all.push_back({stages, chunks, micro_batches});
      }
  return all;
}

std::string text_of(const PipelineShape& shape) {
  return fmt::format("{} stages, {} chunks, {} micro-batches", shape.stages, shape.chunks,
                     shape.micro_batches);
}

TEST(PipelineSchedule, EachStageRunsItsChunksOnceForEachMicroBatch) {
  for (const auto& shape : shapes()) {
    std::set<std::tuple<Kind, int, int>> done;
    for (int stage = 0; stage < shape.stages; ++stage)
      for (const auto& action : pipeline_actions(shape, stage)) {
        if (!is_pass(action)) continue;
        EXPECT_EQ(shape.stage_of(action.chunk), stage);
        EXPECT_TRUE(done.insert({action.kind, action.chunk, action.micro_batch}).second);
        if (action.kind == Kind::backward) {
          EXPECT_TRUE(done.contains({Kind::forward, action.chunk, action.micro_batch}));
        }
        if (action.micro_batch > 0) {
          EXPECT_TRUE(done.contains({action.kind, action.chunk, action.micro_batch - 1}))
              << "micro-batches in another order: " << text_of(shape);
        }
      }
    EXPECT_EQ(std::ssize(done), 2 * shape.all_chunks() * shape.micro_batches) << text_of(shape);
  }
}

// Every send has its receive at the same place of the order of both, and nothing waits in a circle.
TEST(PipelineSchedule, EndsWithTwoBuffersForEachNeighbor) {
  for (const auto& shape : shapes())
    for (const auto& seconds : {PassSeconds{1, 2}, {1, 1}, {2, 1}, {1, 9}})
      EXPECT_NO_THROW(walk_pipeline(shape, seconds, 2)) << text_of(shape);
}

TEST(PipelineSchedule, HasTheBubbleOfTheFormula) {
  for (const auto& shape : shapes()) {
    if (shape.micro_batches % shape.stages != 0) continue;
    const double work = 3.0 * shape.chunks * shape.micro_batches;
    EXPECT_NEAR(walk_pipeline(shape, {1, 2}, 2) / work - 1, pipeline_bubble(shape), 1e-12)
        << text_of(shape);
  }
}

TEST(PipelineSchedule, KeepsAsManyMicroBatchesAsThereAreStagesToCome) {
  const PipelineShape shape{.stages = 4, .chunks = 1, .micro_batches = 8};
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(max_in_flight(pipeline_actions(shape, stage), stage), 4 - stage);
  const PipelineShape few{.stages = 4, .chunks = 1, .micro_batches = 2};
  EXPECT_EQ(max_in_flight(pipeline_actions(few, 0), 0), 2);
}

// Batches follow one another without a wait, once the first one has come through.
TEST(PipelineSchedule, EvaluatesWithAllStagesAtWork) {
  for (const auto& shape : shapes()) {
    for (int stage = 0; stage < shape.stages; ++stage)
      for (const auto& action : evaluation_actions(shape, stage))
        EXPECT_TRUE(action.kind != Kind::backward && action.kind != Kind::send_gradients &&
                    action.kind != Kind::receive_gradients);
    const double work = shape.chunks * shape.micro_batches;
    const double seconds = walk_pipeline(shape, {1, 2}, 2, evaluation_actions);
    if (shape.micro_batches % shape.stages == 0) {
      EXPECT_EQ(seconds, work + shape.stages - 1) << text_of(shape);
    }
    EXPECT_LE(seconds, work + (shape.chunks + 1) * shape.stages) << text_of(shape);
  }
}

TEST(PipelineSchedule, KnowsTheMostThatIsInFlight) {
  for (const auto& shape : shapes()) {
    int most = 0;
    for (int stage = 0; stage < shape.stages; ++stage)
      for (int chunk = stage; chunk < shape.all_chunks(); chunk += shape.stages)
        most = std::max(most, max_in_flight(pipeline_actions(shape, stage), chunk));
    EXPECT_EQ(max_in_flight(shape), most) << text_of(shape);
  }
  EXPECT_EQ(max_in_flight(PipelineShape{.stages = 4, .chunks = 1, .micro_batches = 8}), 4);
  EXPECT_EQ(max_in_flight(PipelineShape{}), 1);
}

// Without a buffer a pass can never send.
TEST(PipelineSchedule, AWaitInACircleIsReported) {
  EXPECT_THROW(walk_pipeline({.stages = 2, .chunks = 1, .micro_batches = 2}, {1, 1}, 0), Error);
}

// By hand, from Megatron's figure: 2 stages with 2 chunks each and 4 micro-batches.
TEST(PipelineSchedule, InterleavesChunks) {
  std::string order;
  for (const auto& action : pipeline_actions({.stages = 2, .chunks = 2, .micro_batches = 4}, 0))
    if (is_pass(action))
      order += fmt::format("{}{}{} ", action.kind == Kind::forward ? 'F' : 'B', action.chunk,
                           action.micro_batch);
  EXPECT_EQ(order, "F00 F01 F20 F21 F02 B20 F03 B21 F22 B00 F23 B01 B22 B23 B02 B03 ");
}

TEST(PipelineSchedule, RefusesMicroBatchesThatDoNotDivideIntoRounds) {
  try {
    pipeline_actions({.stages = 4, .chunks = 2, .micro_batches = 9}, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_EQ(
        std::string(error.what()),
        "a step's 9 micro-batches do not divide into 2 rounds over 4 pipeline stages with 2 "
        "chunks each; make train.global_batch give a multiple of 4, or set pipeline.chunks=1");
  }
}

}  // namespace
}  // namespace llamesh::train
