#include "train/engine/pipeline_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

using Kind = PipelineAction::Kind;

bool is_pass(const PipelineAction& action) {
  return action.kind == Kind::forward || action.kind == Kind::backward;
}

/// Stages that take their actions on one clock. A transfer takes no time and begins when both ends
/// have come to it. Each direction to a neighbor has two buffers at either end.
class Stages {
 public:
  Stages(const PipelineShape& shape, double forward, double backward)
      : shape_(shape), seconds_{forward, backward}, stages_(std::size_t(shape.stages)) {
    for (int s = 0; s < shape.stages; ++s)
      stages_[std::size_t(s)].actions = pipeline_actions(shape, s);
  }
  /// Returns the seconds until all stages are done; a negative number if they wait in a circle.
  double run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& stage : stages_)
        while (stage.next < stage.actions.size() && take(stage)) moved = true;
    }
    double end = 0;
    for (const auto& stage : stages_) {
      if (stage.next < stage.actions.size()) return -1;
      end = std::max(end, stage.now);
    }
    return end;
  }

 private:
  static constexpr std::size_t buffers = 2;
  struct Transfers {  // between a chunk and the next one; by number
    std::vector<double> sent, received;
    std::vector<PipelineAction> sent_actions, received_actions;
    std::size_t used = 0;
  };
  struct Stage {
    std::vector<PipelineAction> actions;
    std::size_t next = 0;
    double now = 0;
  };
  /// Channel of a transfer from one stage to its neighbor: the sending stage, and what it sends.
  Transfers& channel(const PipelineAction& action) {
    const bool activations = action.kind == Kind::receive_activations ||
                             action.kind == Kind::send_activations || action.kind == Kind::forward;
    const bool sends = action.kind == Kind::send_activations || action.kind == Kind::send_gradients;
    const int step = activations ? 1 : -1;
    const int sender = sends ? action.chunk : action.chunk - step;
    return channels_[{shape_.stage_of(sender), activations}];
  }
  static bool is_known(const Transfers& transfers, std::size_t number) {
    return number < transfers.sent.size() && number < transfers.received.size();
  }
  static double end_of(const Transfers& transfers, std::size_t number) {
    return std::max(transfers.sent[number], transfers.received[number]);
  }
  bool receives(const PipelineAction& pass) const {
    return pass.chunk != (pass.kind == Kind::forward ? 0 : shape_.all_chunks() - 1);
  }
  bool sends(const PipelineAction& pass) const {
    return pass.chunk != (pass.kind == Kind::forward ? shape_.all_chunks() - 1 : 0);
  }
  bool take(Stage& stage) {
    const auto& action = stage.actions[stage.next];
    if (is_pass(action)) {
      if (!take_pass(stage, action)) return false;
    } else {
      auto& transfers = channel(action);
      const bool sends =
          action.kind == Kind::send_activations || action.kind == Kind::send_gradients;
      (sends ? transfers.sent : transfers.received).push_back(stage.now);
      (sends ? transfers.sent_actions : transfers.received_actions).push_back(action);
      const auto number = std::min(transfers.sent.size(), transfers.received.size());
      if (number > 0 && number == (sends ? transfers.sent : transfers.received).size())
        expect_match(transfers.sent_actions[number - 1], transfers.received_actions[number - 1]);
    }
    ++stage.next;
    return true;
  }
  bool take_pass(Stage& stage, const PipelineAction& pass) {
    double start = stage.now;
    if (receives(pass)) {
      auto& transfers = channel(pass);
      if (!is_known(transfers, transfers.used)) return false;
      EXPECT_EQ(transfers.received_actions[transfers.used].micro_batch, pass.micro_batch);
      EXPECT_EQ(transfers.received_actions[transfers.used].chunk, pass.chunk);
      start = std::max(start, end_of(transfers, transfers.used));
    }
    if (sends(pass)) {
      const auto sent =
          PipelineAction{pass.kind == Kind::forward ? Kind::send_activations : Kind::send_gradients,
                         pass.chunk, pass.micro_batch};
      const auto& transfers = channel(sent);
      const auto number = transfers.sent.size();
      if (number >= buffers) {  // this pass writes where that one was sent from
        if (!is_known(transfers, number - buffers)) return false;
        start = std::max(start, end_of(transfers, number - buffers));
      }
    }
    if (receives(pass)) ++channel(pass).used;
    stage.now = start + seconds_[pass.kind == Kind::forward ? 0 : 1];
    return true;
  }
  static void expect_match(const PipelineAction& sent, const PipelineAction& received) {
    EXPECT_EQ(sent.micro_batch, received.micro_batch);
    EXPECT_EQ(sent.kind == Kind::send_activations, received.kind == Kind::receive_activations);
    EXPECT_EQ(received.chunk - sent.chunk, sent.kind == Kind::send_activations ? 1 : -1)
        << describe(sent) << ", " << describe(received);
  }

  PipelineShape shape_;
  double seconds_[2];
  std::vector<Stage> stages_;
  std::map<std::pair<int, bool>, Transfers> channels_;
};

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
    for (const auto& [forward, backward] :
         {std::pair(1.0, 2.0), {1.0, 1.0}, {2.0, 1.0}, {1.0, 9.0}})
      EXPECT_GT(Stages(shape, forward, backward).run(), 0) << text_of(shape);
}

TEST(PipelineSchedule, HasTheBubbleOfTheFormula) {
  for (const auto& shape : shapes()) {
    if (shape.micro_batches % shape.stages != 0) continue;
    const double work = 3.0 * shape.chunks * shape.micro_batches;
    EXPECT_NEAR(Stages(shape, 1, 2).run() / work - 1, pipeline_bubble(shape), 1e-12)
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
