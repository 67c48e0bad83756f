#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/file.hpp"
#include "core/json.hpp"
#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"
#include "support.hpp"
#include "train/job/profile.hpp"
#include "train/setup/profiled_steps.hpp"

// Checks a run's trace against the run.

namespace llamesh::test {
namespace {

using nlohmann::json;

train::Inputs traced(const std::filesystem::path& folder, const char* steps) {
  auto in = inputs_in(folder);
  in.train.steps = 4;
  in.checkpoint.every_steps = 0;
  in.profile.steps = steps;
  return in;
}

json trace_of(const train::Inputs& in) {
  const auto path = in.run.folder + "/trace/trace.json";
  return parse_json(read_file(path, 1 << 26), path).at("traceEvents");
}

std::vector<json> select(const json& events, const std::string& key, const std::string& value) {
  std::vector<json> found;
  for (const json& event : events)
    if (event.value(key, "") == value) found.push_back(event);
  return found;
}

double begin_of(const json& event) {
  return event.at("ts").get<double>();
}
double end_of(const json& event) {
  return begin_of(event) + event.at("dur").get<double>();
}

/// Returns the steps in the trace, by rank.
std::map<int, std::set<std::string>> steps_of(const json& events) {
  std::map<int, std::set<std::string>> steps;
  for (const json& event : select(events, "cat", "step"))
    steps[event.at("pid").get<int>()].insert(event.at("name").get<std::string>());
  return steps;
}

TEST(TrainingTrace, EachRankHasItsNameAndTheTracedStepsAlone) {
  const SharedFolder folder;
  const auto in = traced(folder.path(), "2-3");
  run_to_the_end(in);
  const json events = trace_of(in);
  std::set<std::string> names;
  for (const json& event : select(events, "name", "process_name"))
    names.insert(event.at("args").at("name").get<std::string>());
  ASSERT_EQ(names.size(), static_cast<std::size_t>(world().size()));
  for (int rank = 0; rank < world().size(); ++rank)
    EXPECT_EQ(std::ranges::count_if(names,
                                    [&](const std::string& name) {
                                      return name.starts_with(fmt::format("rank {} on ", rank));
                                    }),
              1);
  // Perfetto merges thread 0 of all processes.
  std::map<int, std::set<int>> ranks_of_lanes;
  for (const json& event : events)
    ranks_of_lanes[event.at("tid").get<int>()].insert(event.at("pid").get<int>());
  EXPECT_FALSE(ranks_of_lanes.contains(0));
  for (const auto& [lane, ranks] : ranks_of_lanes) EXPECT_EQ(ranks.size(), 1u) << lane;
  const auto steps = steps_of(events);
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(world().size()));
  for (const auto& [rank, of_rank] : steps)
    EXPECT_EQ(of_rank, (std::set<std::string>{"step 2", "step 3"})) << rank;
  // All other events lie within these steps on their rank.
  std::map<int, std::vector<json>> spans;
  for (const json& event : select(events, "cat", "step"))
    spans[event.at("pid").get<int>()].push_back(event);
  for (const json& event : select(events, "ph", "X"))
    EXPECT_TRUE(std::ranges::any_of(spans[event.at("pid").get<int>()], [&](const json& step) {
      return begin_of(step) <= begin_of(event) && end_of(event) <= end_of(step) + 1e-3;
    })) << event;
  EXPECT_FALSE(std::filesystem::exists(in.run.folder + "/trace/rank-00000.jsonl"));
}

/// In each rank's lanes, any event is inside or after another; none overlap partially.
TEST(TrainingTrace, EventsOfALaneNest) {
  const SharedFolder folder;
  const auto in = traced(folder.path(), "2-3");
  run_to_the_end(in);
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lanes;
  const json events = trace_of(in);
  for (const json& event : select(events, "ph", "X"))
    lanes[{event.at("pid").get<int>(), event.at("tid").get<int>()}].emplace_back(begin_of(event),
                                                                                 -end_of(event));
  constexpr double rounding = 1e-3;  // in microseconds
  for (auto& [lane, spans] : lanes) {
    std::ranges::sort(spans);
    std::vector<double> open;
    for (const auto& [begin, minus_end] : spans) {
      while (!open.empty() && open.back() <= begin + rounding) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(-minus_end, open.back() + rounding) << lane.first << '/' << lane.second;
      }
      open.push_back(-minus_end);
    }
  }
  EXPECT_GT(lanes.size(), static_cast<std::size_t>(world().size()));
}

TEST(TrainingTrace, HasAllCollectivesThatArePlanned) {
  const SharedFolder folder;
  auto in = traced(folder.path(), "3");
  in.train.global_batch =
      std::int64_t{3} * world().size();  // the plan simulates the same number of micro-batches
  run_to_the_end(in);
  const auto setup = plan::make_planned_setup(world(), in);
  const auto plan = plan::plan_on_this_device(setup, world().rank(), 1);
  std::map<std::string, std::int64_t> planned, found;
  for (const auto& group : plan.groups)
    if (!group.axis.empty() && group.collectives > 0) planned[group.axis] += group.collectives;
  std::map<std::string, std::set<std::int64_t>> numbers;
  const json events = trace_of(in);
  for (const json& event : select(events, "cat", "collective")) {
    const json& args = event.at("args");
    if (event.at("pid") != world().rank() || !args.contains("bytes")) continue;
    const auto axis = args.at("axis").get<std::string>();
    if (axis == "one rank") continue;
    ++found[axis];
    numbers[axis].insert(args.at("sequence").get<std::int64_t>());
    EXPECT_LE(args.at("asked").get<double>(), begin_of(event));
    EXPECT_FALSE(args.at("unit").get<std::string>().empty());
  }
  EXPECT_EQ(found, planned);
  for (const auto& [axis, of_axis] : numbers) {
    EXPECT_EQ(static_cast<std::int64_t>(of_axis.size()), found[axis]) << axis;
    EXPECT_EQ(*of_axis.rbegin() - *of_axis.begin() + 1, found[axis]) << axis;
  }
}

TEST(TrainingTrace, ShowsPassesKernelsAndWhatTheyWaitFor) {
  const SharedFolder folder;
  auto in = traced(folder.path(), "2");
  in.sharding.offload = sharding::Offload::all;
  in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
  run_to_the_end(in);
  const json events = trace_of(in);
  const auto count = [&](const char* name) {
    return static_cast<int>(select(events, "name", name).size()) / world().size();
  };
  const int micro_batches = 12 / world().size();
  for (const char* pass : {"forward", "recompute", "backward"})
    EXPECT_EQ(count(fmt::format("{} model.layers.1.self_attn", pass).c_str()), micro_batches)
        << pass;
  EXPECT_EQ(count("attention"), (3 + 2) * micro_batches);  // the last of 3 layers is not recomputed
  EXPECT_EQ(count("attention_backward"), 3 * micro_batches);
  std::set<std::string> lanes;
  for (const json& event : select(events, "name", "thread_name"))
    lanes.insert(event.at("args").at("name").get<std::string>());
  for (const char* lane : {"compute", "copies to device", "copies to host"})
    EXPECT_TRUE(lanes.contains(lane)) << lane;
  EXPECT_EQ(lanes.contains("shard"), world().size() > 1);
  for (const json& wait : select(events, "cat", "wait")) {
    const auto axis = wait.at("args").value("axis", "");
    EXPECT_TRUE(lanes.contains(axis)) << wait;
  }
}

TEST(TrainingTrace, IsWrittenWhereTheRunEndsBeforeItsLastStep) {
  const SharedFolder folder;
  const auto in = traced(folder.path(), "4-9");
  run_to_the_end(in);
  const auto steps = steps_of(trace_of(in));
  for (const auto& [rank, of_rank] : steps)
    EXPECT_EQ(of_rank, std::set<std::string>{"step 4"}) << rank;
}

TEST(TrainingTrace, IsNotWrittenUnlessItIsAskedFor) {
  const SharedFolder folder;
  const auto in = traced(folder.path(), "");
  run_to_the_end(in);
  EXPECT_FALSE(std::filesystem::exists(in.run.folder + "/trace"));
}

TEST(TrainingTrace, ThatOneRankCannotWriteIsAnErrorOnAllRanksBeforeTheRunTrainsOnly) {
  const SharedFolder folder;
  const auto in = traced(folder.path(), "2");
  const int last = world().size() - 1;
  if (world().rank() == 0)
    std::filesystem::create_directories(
        fmt::format("{}/trace/rank-{:05}.jsonl", in.run.folder, last));
  world().barrier();
  const auto setup = plan::make_planned_setup(world(), in);
  train::Profile profile(world(), setup);
  std::string error;
  try {
    profile.check(0);
  } catch (const Error& any) {
    error = any.what();
  }
  world().barrier();
  EXPECT_NE(error.find(world().rank() == last ? ".jsonl" : "another rank failed"),
            std::string::npos)
      << error;
  profile.begin(2);
  EXPECT_TRUE(profile.end(2));
  EXPECT_NO_THROW(profile.write());
  EXPECT_FALSE(std::filesystem::exists(in.run.folder + "/trace/trace.json"));
}

TEST(ProfiledSteps, AreARangeOrOneStep) {
  const auto range = [](const char* text) {
    const auto [first, last] = train::profiled_steps({text});
    return std::pair(first, last);
  };
  EXPECT_EQ(range("10-12"), std::pair(10L, 12L));
  EXPECT_EQ(range("7"), std::pair(7L, 7L));
  EXPECT_FALSE(train::profiled_steps({}).contains(1));
  for (const char* wrong :
       {"0", "-3", "3-", "5-4", "1-2-3", "ten", "1,2", " 1", "99999999999999999999"})
    EXPECT_EQ(error_of([&] { range(wrong); }),
              fmt::format("profile.steps is '{}': give FIRST-LAST, as in 10-12, or the number of "
                          "one step, from 1",
                          wrong));
}

}  // namespace
}  // namespace llamesh::test
