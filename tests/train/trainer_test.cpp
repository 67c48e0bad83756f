#include "train/step/trainer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/session.hpp"
#include "runs/small_run.hpp"
#include "support.hpp"
#include "train/records/metrics.hpp"

namespace llamesh::train {
namespace {

using test::left_by;
using test::world;

/// A trainer for the small model over all ranks, with a separate folder per rank.
class SmallTrainer {
 public:
  explicit SmallTrainer(const Inputs& in)
      : setup_(make_setup(world(), in)),
        mesh_(world(), setup_.topology, setup_.mesh),
        trainer_(world(), setup_, mesh_) {
    trainer_.start();
  }

  Trainer* operator->() { return &trainer_; }
  /// Returns this rank's shards of the master weights and the moments.
  std::vector<std::vector<float>> state() const {
    std::vector<std::vector<float>> state;
    for (const auto& shard : shards()) {
      const auto values = shard.span<float>();
      state.emplace_back(values.begin(), values.end());
    }
    return state;
  }
  void restore(const std::vector<std::vector<float>>& state) {
    const auto to = shards();
    for (std::size_t i = 0; i < to.size(); ++i)
      std::ranges::copy(state[i], to[i].span<float>().begin());
    world().barrier();  // a node's master shards are gathered in place
    trainer_.on_master_weights_loaded();
  }

 private:
  std::vector<Tensor> shards() const {
    auto shards = trainer_.state().masters().shards;
    for (const auto& moment : trainer_.state().moments())
      shards.insert(shards.end(), moment.shards.begin(), moment.shards.end());
    return shards;
  }

  Setup setup_;
  comm::DeviceMesh mesh_;
  Trainer trainer_;
};

Inputs inputs_in(const test::TemporaryFolder& folder) {
  auto in = test::small_inputs(folder.path());
  in.mesh.ranks_per_node = world().size() == 4 ? 2 : 0;
  return in;
}

void expect_same_everywhere(double value) {
  const auto bits = std::bit_cast<std::int64_t>(value);
  EXPECT_EQ(world().all_gather(bits),
            std::vector<std::int64_t>(static_cast<std::size_t>(world().size()), bits));
}

TEST(Trainer, AStepsRecordIsTheSameOnEveryRank) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  for (std::int64_t step = 1; step <= 2; ++step) {
    const auto record = trainer->train_step();
    EXPECT_EQ(record.step, step);
    EXPECT_EQ(record.tokens, step * 12 * 24);
    EXPECT_DOUBLE_EQ(record.lr, 3e-3 * static_cast<double>(step) / 4);  // warmup
    EXPECT_NEAR(record.loss, std::log(257), 0.5);
    EXPECT_GT(record.grad_norm, 0);
    EXPECT_GE(record.peak, record.allocated_after_step);
    for (const double value : {record.loss, record.grad_norm, record.seconds})
      expect_same_everywhere(value);
  }
}

/// Sysfs with one package of RAPL on this machine, shared by all ranks, for a scope.
class FakeRapl {
 public:
  FakeRapl() {
    const std::filesystem::path sysfs(comm::on_rank_0(world(), [&] {
      std::filesystem::create_directories(folder_.path() / "class/powercap/intel-rapl:0");
      return folder_.path().string();
    }));
    zone_ = sysfs / "class/powercap/intel-rapl:0";
    set_microjoules("1000");
    std::ofstream(zone_ / "name") << "package-0\n";
    setenv("LLAMESH_SYSFS", sysfs.c_str(), 1);
    world().barrier();
  }
  ~FakeRapl() { unsetenv("LLAMESH_SYSFS"); }
  /// By rank 0, which answers for the machine.
  void set_microjoules(const std::string& text) const {
    if (world().rank() == 0) std::ofstream(zone_ / "energy_uj") << text << '\n';
  }

 private:
  test::TemporaryFolder folder_;
  std::filesystem::path zone_;
};

TEST(Trainer, AStepsEnergyIsThatOfTheNodesSinceTheOneBefore) {
  const test::TemporaryFolder folder;
  const FakeRapl rapl;
  SmallTrainer trainer(inputs_in(folder));
  EXPECT_EQ(trainer->meter().describe_energy(), world().rank() == 0 ? "RAPL (1 package)" : "");
  rapl.set_microjoules("5001000");
  const auto first = trainer->train_step();
  ASSERT_TRUE(first.joules);
  EXPECT_DOUBLE_EQ(*first.joules, 5);  // once, on any number of ranks
  const auto& in = inputs_in(folder);
  EXPECT_DOUBLE_EQ(first.tokens_per_joule.value_or(0),
                   static_cast<double>(in.train.global_batch * in.data.sequence_length) / 5);
  expect_same_everywhere(*first.joules);
  const auto second = trainer->train_step([&] { rapl.set_microjoules("7001000"); });
  EXPECT_DOUBLE_EQ(second.joules.value_or(-1), 2);
  const auto third = trainer->train_step();
  EXPECT_EQ(third.joules, 0.0);
  EXPECT_EQ(third.tokens_per_joule, std::nullopt);
  rapl.set_microjoules("?");
  EXPECT_EQ(trainer->train_step().joules, std::nullopt);
  rapl.set_microjoules("9001000");
  EXPECT_DOUBLE_EQ(trainer->train_step().joules.value_or(-1), 2) << "since it was last known";
}

TEST(Trainer, MfuIsKnownOnceThePeakIs) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  EXPECT_EQ(trainer->train_step().mfu, std::nullopt);
  trainer->measure_gemm_peak();
  const auto mfu = trainer->train_step().mfu;
  ASSERT_EQ(mfu.has_value(), trainer->meter().gemm_peak()->is_sure());
  if (!mfu) return;  // other work on this machine
  EXPECT_GT(*mfu, 0);
  EXPECT_LE(*mfu, 1);
}

/// Returns the number of collectives for host values in a step.
std::int64_t collectives_of_a_step(bool contract) {
  const test::TemporaryFolder folder;
  auto inputs = inputs_in(folder);
  inputs.debug.contract = contract;
  SmallTrainer trainer(inputs);
  trainer->train_step();
  const auto entered = [] {
    return comm::FlightRecorder::instance().entered(world().members()->id);
  };
  const auto before = entered();
  trainer->train_step();
  return entered() - before;
}

TEST(Trainer, AStepTakesTwoCollectivesOfHostValues) {
  unsetenv("LLAMESH_DEBUG_CONTRACT");
  EXPECT_EQ(collectives_of_a_step(false), 2);
  EXPECT_EQ(collectives_of_a_step(true), 3);
  setenv("LLAMESH_DEBUG_CONTRACT", "1", 1);  // as in mpirun.sh
}

double exposed_of(const StepRecord& record) {
  double sum = 0;
  for (const auto& [axis, seconds] : record.exposed) sum += seconds;
  return sum;
}

TEST(Trainer, ExposedTimeAndTheRestAreTheStep) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  const auto record = trainer->train_step();
  ASSERT_EQ(record.exposed.size(), record.traffic.size());
  for (const auto& [axis, seconds] : record.exposed) {
    EXPECT_TRUE(record.traffic.contains(axis)) << axis;
    EXPECT_GE(seconds, 0) << axis;
    EXPECT_GE(record.in_collectives.at(axis), 0) << axis;
    expect_same_everywhere(seconds);
  }
  EXPECT_GT(record.seconds_compute, 0);
  // Both are means, and `seconds` is the slowest rank's.
  EXPECT_LE(record.seconds_compute + exposed_of(record), record.seconds * (1 + 1e-6));
}

TEST(Trainer, AStepOfALateRankIsExposedOnTheOthers) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  trainer->train_step();
  const double others = world().size() - 1.0;
  // Others that get no processor come late, too: then again, with more time.
  bool seen = false;
  for (double late = 0.2; !seen && late < 10; late *= 2) {
    int micro_batches = 0;
    const auto record = trainer->train_step([&] {
      if (world().rank() == 0 && ++micro_batches == 1)
        std::this_thread::sleep_for(std::chrono::duration<double>(late));
    });
    EXPECT_GE(record.seconds, late);
    seen = exposed_of(record) >= 0.8 * late * others / world().size();
  }
  EXPECT_TRUE(seen);
}

TEST(Trainer, ASlowRankIsNamedThoughAllWaitForIt) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const test::TemporaryFolder folder;
  auto inputs = inputs_in(folder);
  inputs.train.steps = 10 * Stragglers::steps;
  SmallTrainer trainer(inputs);
  const auto is_named = [](const std::vector<std::string>& said) {
    return std::ranges::any_of(said,
                               [](const auto& line) { return line.starts_with("rank 1 on "); });
  };
  // On a busy machine others may be slow and named, too: then again, with more time.
  bool named = false;
  std::chrono::duration<double> late(1.05 * Stragglers::window / Stragglers::steps);
  for (; !named && late.count() < 3; late *= 2)
    for (std::int64_t step = 0; step < Stragglers::steps; ++step) {
      bool first = true;
      const auto record = trainer->train_step([&] {
        if (world().rank() == 1 && std::exchange(first, false)) std::this_thread::sleep_for(late);
      });
      named = is_named(record.stragglers);
    }
  EXPECT_TRUE(named);
}

TEST(Trainer, TheGreatestRequestOfAllRanksIsInTheRecord) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  double asked_at = -1;
  const auto record = trainer->train_step([] {},
                                          [&](double seconds) {
                                            asked_at = seconds;
                                            return std::int64_t{3} + world().rank();
                                          });
  EXPECT_EQ(record.request, 3 + world().size() - 1);
  EXPECT_GT(asked_at, 0);
  EXPECT_LE(asked_at, record.seconds);
}

TEST(Trainer, DrawsWeightsOnlyWhereNothingIsLoaded) {
  const test::TemporaryFolder folder;
  const auto setup = make_setup(world(), inputs_in(folder));
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  Trainer trainer(world(), setup, mesh);
  const auto& shards = trainer.state().masters().shards;
  const auto all_are = [&](float value) {
    return std::ranges::all_of(shards, [&](const Tensor& shard) {
      return std::ranges::all_of(shard.span<float>(), [&](float x) { return x == value; });
    });
  };
  EXPECT_TRUE(all_are(0));
  for (const auto& shard : shards) std::ranges::fill(shard.span<float>(), 0.5F);  // as if loaded
  trainer.resume_from(0, 0);
  EXPECT_TRUE(all_are(0.5F));
  trainer.start();
  EXPECT_FALSE(all_are(0.5F));
}

TEST(Trainer, ResumeFromRepeatsTheNextStepToTheBit) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_in(folder));
  trainer->train_step();
  const auto second = trainer->train_step();
  const auto state = trainer.state();
  const auto third = trainer->train_step();
  EXPECT_NE(trainer.state(), state);
  trainer.restore(state);
  trainer->resume_from(2, second.tokens);
  EXPECT_EQ(trainer->step(), 2);
  const auto again = trainer->train_step();
  EXPECT_EQ(again.step, 3);
  EXPECT_EQ(again.tokens, third.tokens);
  EXPECT_EQ(std::bit_cast<std::int64_t>(again.loss), std::bit_cast<std::int64_t>(third.loss));
  EXPECT_EQ(std::bit_cast<std::int64_t>(again.grad_norm),
            std::bit_cast<std::int64_t>(third.grad_norm));
}

TEST(Trainer, EvaluationLeavesTrainingAsItWas) {
  const test::TemporaryFolder folder;
  auto in = inputs_in(folder);
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 1;
  in.evaluate.batches = 3;
  SmallTrainer trainer(in);
  SmallTrainer undisturbed(in);
  double before = 0;
  for (int step = 0; step < 3; ++step) {
    const double loss = trainer->evaluate().loss;
    expect_same_everywhere(loss);
    EXPECT_EQ(loss, trainer->evaluate().loss);
    EXPECT_TRUE(step == 0 || loss < before) << loss << " after " << before;
    before = loss;
    const auto state = trainer.state();
    trainer->evaluate();
    EXPECT_EQ(trainer.state(), state);
    EXPECT_EQ(trainer->train_step().loss, undisturbed->train_step().loss);
  }
  EXPECT_EQ(trainer.state(), undisturbed.state());
}

/// Returns headerless ids, 24 per sequence; sequence `bad` contains `bad_id`, which the vocabulary
/// lacks.
std::string tokens_with(std::int64_t bad, const test::TemporaryFolder& folder,
                        std::int64_t bad_id = 300) {
  std::string bytes;
  for (std::int64_t i = 0; i < 24 * 24 + 1; ++i) {
    const auto id = i == bad * 24 + 5 ? bad_id : i % 250;
    bytes.push_back(static_cast<char>(id % 256));
    bytes.push_back(static_cast<char>(id / 256));
  }
  return folder.write("tokens" + std::to_string(bad) + ".bin", bytes);
}

/// Checks that one rank reports an id outside the vocabulary, and all fail.
void expect_one_tells(const std::string& left) {
  EXPECT_NE(left, "");
  const bool tells = left.find("300") != std::string::npos;
  EXPECT_TRUE(tells || left == "follows") << left;
  EXPECT_EQ(world().sum(std::int64_t{tells}), 1);
}

Inputs inputs_of_tokens(const test::TemporaryFolder& folder, std::int64_t bad) {
  auto in = inputs_in(folder);
  in.data.format = data::Format::tokens;
  in.data.token_dtype = data::TokenDtype::uint16;
  in.data.order = data::Order::sequential;
  in.data.train = {tokens_with(bad, folder)};
  return in;
}

TEST(Trainer, DataThatOneRankCannotReadEndTheStepOnAll) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_of_tokens(folder, 13));  // in the second step
  EXPECT_EQ(left_by([&] { trainer->train_step(); }, ExitCode::bad_input), "");
  expect_one_tells(left_by([&] { trainer->train_step(); }, ExitCode::bad_input));
}

TEST(Trainer, ValidationDataThatOneRankCannotReadEndTheEvaluationOnAll) {
  const test::TemporaryFolder folder;
  auto in = inputs_of_tokens(folder, 100);  // beyond the end: the training data are good
  in.data.validation = {tokens_with(1, folder)};
  in.evaluate.every_steps = 1;
  SmallTrainer trainer(in);
  expect_one_tells(left_by([&] { trainer->evaluate(); }, ExitCode::bad_input));
}

/// An id that only one sequence has, the 14th out of 24.
constexpr std::int64_t rare_id = 255;
Inputs inputs_with_a_rare_id(const test::TemporaryFolder& folder) {
  auto in = inputs_of_tokens(folder, 100);
  in.data.train = {tokens_with(13, folder, rare_id)};
  in.train.on_nonfinite = OnNonfinite::skip;
  return in;
}

/// Overwrites this rank's part of a parameter's rows [begin, end).
void set_rows(Trainer& trainer, const std::string& name, std::int64_t begin, std::int64_t end,
              float value) {
  const auto& layout = trainer.state().layout();
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const auto& piece : layout.pieces(u, world().rank())) {
      const auto& parameter = layout.table()[piece.parameter];
      if (parameter.name != name) continue;
      const auto row = numel(parameter.shape) / parameter.shape[0];
      const auto values = trainer.state().masters().shards[u].span<float>();
      for (auto i = std::max(piece.begin, begin * row);
           i < std::min(piece.begin + piece.count, end * row); ++i)
        values[static_cast<std::size_t>(piece.offset + i - piece.begin)] = value;
    }
  world().barrier();  // a node's master shards are gathered in place
  trainer.on_master_weights_loaded();
}

TEST(Trainer, ALossThatIsNoNumberHasNoSign) {
  const test::TemporaryFolder folder;
  SmallTrainer trainer(inputs_with_a_rare_id(folder));
  // Its norm is infinity / infinity: on x86 a NaN with a sign.
  set_rows(*trainer.operator->(), "model.embed_tokens.weight", rare_id, rare_id + 1, INFINITY);
  trainer->train_step();
  const auto bad = trainer->train_step();
  EXPECT_TRUE(bad.skipped.starts_with("step 2: loss nan, gradient norm nan")) << bad.skipped;
  EXPECT_EQ(log_fields(bad, 2)[1], "loss nan");
}

/// Returns true if all bits are equal, also for NaNs.
bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return std::ranges::equal(x, y, {}, std::bit_cast<std::uint32_t, float>,
                              std::bit_cast<std::uint32_t, float>);
  });
}

// One sequence's rare id has a non-finite embedding. So the loss on its rank and the gradient are
// non-finite in that step, and in no other.
void expect_no_update_where_skipped(sharding::Offload offload) {
  const test::TemporaryFolder folder;
  auto in = inputs_with_a_rare_id(folder);
  in.sharding.offload = offload;
  SmallTrainer trainer(in);
  set_rows(*trainer.operator->(), "model.embed_tokens.weight", rare_id, rare_id + 1, NAN);
  EXPECT_EQ(trainer->train_step().skipped, "");
  const auto before = trainer.state();
  const auto bad = trainer->train_step();
  EXPECT_TRUE(std::isnan(bad.loss));
  EXPECT_FALSE(std::isfinite(bad.grad_norm));
  EXPECT_NE(bad.skipped.find("the loss is not finite on 1 of"), std::string::npos) << bad.skipped;
  EXPECT_TRUE(same_bits(trainer.state(), before));
  EXPECT_EQ(bad.step, 2);
  EXPECT_EQ(bad.tokens, 2 * 12 * 24);
  const auto next = trainer->train_step();
  EXPECT_EQ(next.skipped, "");
  EXPECT_TRUE(std::isfinite(next.loss) && std::isfinite(next.grad_norm));
  EXPECT_EQ(next.step, 3);
  EXPECT_DOUBLE_EQ(next.lr, 3e-3 * 3 / 4);  // the schedule has advanced
  const auto after = trainer.state();
  for (std::size_t u = 0; u < after.size(); ++u)
    for (std::size_t i = 0; i < after[u].size(); ++i)
      EXPECT_EQ(std::isnan(after[u][i]), std::isnan(before[u][i])) << u << " " << i;
  EXPECT_FALSE(same_bits(after, before));
}

TEST(Trainer, AStepThatIsNotFiniteMakesNoUpdateWhereItIsSkipped) {
  expect_no_update_where_skipped(sharding::Offload::none);
}

TEST(Trainer, AStepThatIsNotFiniteMakesNoUpdateOnTheHostEither) {
  expect_no_update_where_skipped(sharding::Offload::optimizer);
}

TEST(Trainer, ALossThatIsNotFiniteIsReportedByItsRank) {
  const test::TemporaryFolder folder;
  auto in = inputs_with_a_rare_id(folder);
  in.train.on_nonfinite = OnNonfinite::stop;
  SmallTrainer trainer(in);
  set_rows(*trainer.operator->(), "model.embed_tokens.weight", rare_id, rare_id + 1, NAN);
  trainer->train_step();
  const auto said = left_by([&] { trainer->train_step(); }, ExitCode::no_progress);
  EXPECT_NE(said, "") << "it goes on";
  if (said != "follows") {
    EXPECT_NE(said.find(fmt::format("ranks: rank {} on ", world().rank())), std::string::npos)
        << said;
  }
  EXPECT_EQ(world().sum(std::int64_t{said != "follows"}), 1);
}

TEST(Trainer, WeightsThatAreNotFiniteEndTheRunAtTheTenthSkippedStep) {
  const test::TemporaryFolder folder;
  auto in = inputs_in(folder);
  in.train.on_nonfinite = OnNonfinite::skip;
  SmallTrainer trainer(in);
  set_rows(*trainer.operator->(), "model.norm.weight", 0, 1, INFINITY);
  const auto before = trainer.state();
  for (std::int64_t i = 1; i < NonfiniteSteps::max_in_a_row; ++i)
    EXPECT_NE(trainer->train_step().skipped, "") << i;
  const auto said = left_by([&] { trainer->train_step(); }, ExitCode::no_progress);
  EXPECT_NE(said, "") << "it goes on";
  EXPECT_EQ(world().sum(std::int64_t{said.find("last 10 steps") != std::string::npos}), 1);
  EXPECT_TRUE(same_bits(trainer.state(), before));
}

}  // namespace
}  // namespace llamesh::train
