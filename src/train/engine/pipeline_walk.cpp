#include "train/engine/pipeline_walk.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

using Kind = PipelineAction::Kind;

bool is_send(Kind kind) {
  return kind == Kind::send_activations || kind == Kind::send_gradients;
}

bool is_forward(Kind kind) {
  return kind == Kind::forward || kind == Kind::send_activations ||
         kind == Kind::receive_activations;
}

class Walk {
 public:
  Walk(const PipelineShape& shape, const PassSeconds& seconds, std::size_t buffers)
      : shape_(shape), seconds_(seconds), buffers_(buffers) {}

  void add_stage(std::vector<PipelineAction> actions) { stages_.push_back({std::move(actions)}); }

  double run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& stage : stages_)
        while (stage.next < stage.actions.size() && take(stage)) moved = true;
    }
    double end = 0;
    for (const auto& stage : stages_) {
      if (stage.next < stage.actions.size())
        fail(ExitCode::internal_error, "{} stages wait in a circle, one of them for the {}",
             shape_.stages, describe(stage.actions[stage.next]));
      end = std::max(end, stage.now);
    }
    return end;
  }

 private:
  struct Stage {
    std::vector<PipelineAction> actions;
    std::size_t next = 0;
    double now = 0;
  };
  /// One end's transfers on a channel, in order, and when it came to each.
  struct End {
    std::vector<PipelineAction> actions;
    std::vector<double> times;
    void add(const PipelineAction& action, double time) {
      actions.push_back(action);
      times.push_back(time);
    }
  };
  /// One direction from a stage to a neighbor.
  struct Channel {
    End sent, received;
    std::size_t used = 0;  ///< of those received
    bool knows(std::size_t number) const {
      return number < std::min(sent.times.size(), received.times.size());
    }
    double end_of(std::size_t number) const {
      return std::max(sent.times[number], received.times[number]);
    }
  };

  /// Returns the channel by which chunk `from` sends on.
  Channel& channel_from(int from, bool forward) {
    return channels_[{shape_.stage_of(from), forward}];
  }
  /// Returns the channel of a transfer, or by which a pass receives.
  Channel& channel_of(const PipelineAction& action) {
    const bool forward = is_forward(action.kind);
    const int before = action.chunk + (forward ? -1 : 1);
    return channel_from(is_send(action.kind) ? action.chunk : before, forward);
  }
  bool take(Stage& stage) {
    const auto& action = stage.actions[stage.next];
    const bool is_pass = action.kind == Kind::forward || action.kind == Kind::backward;
    if (is_pass && !take_pass(stage, action)) return false;
    if (!is_pass) {
      auto& channel = channel_of(action);
      (is_send(action.kind) ? channel.sent : channel.received).add(action, stage.now);
      check_last(channel);
    }
    ++stage.next;
    return true;
  }
  bool take_pass(Stage& stage, const PipelineAction& pass) {
    const bool forward = pass.kind == Kind::forward;
    const int first = 0, last = shape_.all_chunks() - 1;
    double start = stage.now;
    if (pass.chunk != (forward ? first : last)) {
      auto& from = channel_of(pass);
      if (!from.knows(from.used)) return false;
      start = std::max(start, from.end_of(from.used));
    }
    if (pass.chunk != (forward ? last : first)) {
      const auto& to = channel_from(pass.chunk, forward);
      const auto number = to.sent.times.size();
      if (number >= buffers_) {  // the pass writes where that one was sent from
        if (!to.knows(number - buffers_)) return false;
        start = std::max(start, to.end_of(number - buffers_));
      }
    }
    if (pass.chunk != (forward ? first : last)) ++channel_of(pass).used;
    stage.now = start + (forward ? seconds_.forward : seconds_.backward);
    return true;
  }
  /// Checks the last transfer that both ends have come to.
  static void check_last(const Channel& channel) {
    const auto both = std::min(channel.sent.actions.size(), channel.received.actions.size());
    if (both == 0) return;
    const auto& sent = channel.sent.actions[both - 1];
    const auto& received = channel.received.actions[both - 1];
    const int step = is_forward(sent.kind) ? 1 : -1;
    if (sent.micro_batch != received.micro_batch || received.chunk != sent.chunk + step ||
        is_forward(sent.kind) != is_forward(received.kind))
      fail(ExitCode::internal_error, "{} meets {}", describe(sent), describe(received));
  }

  PipelineShape shape_;
  PassSeconds seconds_;
  std::size_t buffers_;
  std::vector<Stage> stages_;
  std::map<std::pair<int, bool>, Channel> channels_;
};

}  // namespace

double walk_pipeline(const PipelineShape& shape, const PassSeconds& seconds, std::size_t buffers,
                     const std::function<std::vector<PipelineAction>(const PipelineShape& shape,
                                                                     int stage)>& actions_of) {
  Walk walk(shape, seconds, buffers);
  for (int stage = 0; stage < shape.stages; ++stage) walk.add_stage(actions_of(shape, stage));
  return walk.run();
}

}  // namespace llamesh::train
