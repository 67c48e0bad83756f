#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/commands.hpp"
#include "comm/mesh/topology.hpp"
#include "config/hardware.hpp"
#include "config/inputs.hpp"
#include "core/file.hpp"
#include "plan/step_plan.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

using Json = nlohmann::json;

PlanArguments cluster(const std::string& name, int ranks) {
  PlanArguments arguments;
  arguments.inputs = test::source_file("inputs/clusters/") + name + ".yaml";
  arguments.ranks = ranks;
  arguments.ranks_per_node = 8;
  arguments.output = Output::json;
  return arguments;
}

struct PrintedPlan {
  int code;
  Json json;
};

PrintedPlan printed(const PlanArguments& arguments) {
  testing::internal::CaptureStdout();
  const int code = plan(arguments);
  return {code, Json::parse(testing::internal::GetCapturedStdout())};
}

/// With work that grows with the square of the ranks, this would run into the test's time limit.
TEST(Plan, OfManyRanks) {
  const auto arguments = cluster("llama3.1-405b-2048x8", 16384);
  const auto [code, json] = printed(arguments);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(json.at("mesh"), "replicate=1 x pipeline=16 x shard=128 x tensor=8");
  for (const auto* key :
       {"valley_bytes", "peak_bytes", "host_bytes", "host_link_bytes", "alive_at_peak", "traffic",
        "checkpoint_bytes", "step_seconds", "tokens_per_second", "mfu", "exposed_seconds"})
    EXPECT_TRUE(json.contains(key)) << key;
  std::int64_t alive = 0;
  for (const auto& [use, bytes] : json.at("alive_at_peak").items())
    alive += bytes.get<std::int64_t>();
  EXPECT_EQ(alive, json.at("peak_bytes"));
}

TEST(Plan, DryRunOf405BillionParametersOn16384Ranks) {
  if (test::sanitized) GTEST_SKIP() << "arithmetic that the other plans do too, for long";
  auto arguments = cluster("llama3.1-405b-2048x8", 16384);
  arguments.dry_run = true;
  const auto [code, json] = printed(arguments);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 4L << 20U);  // KiB
  EXPECT_EQ(code, 0);
  const std::int64_t parameters = 405'853'388'800;
  EXPECT_EQ(json.at("elements"), parameters);
  EXPECT_EQ(json.at("checkpoint_elements"), 3 * parameters);
  EXPECT_GT(json.at("hyperslabs"), 16384);
  EXPECT_LT(json.at("simulated_ranks"), 100);
  const auto& groups = json.at("groups");
  ASSERT_EQ(groups.size(), 9U);
  // Each stage has 8 units, which are gathered once a step, and reduced over a separate
  // communicator.
  for (const std::size_t g : {2U, 4U}) {
    EXPECT_EQ(groups[g].at("axis"), "shard");
    EXPECT_EQ(groups[g].at("size"), 128);
    EXPECT_EQ(groups[g].at("groups"), 128);
    EXPECT_EQ(groups[g].at("collectives"), 8);
  }
  // A stage sends the activations of 16 sequences behind each of its 4 chunks, and receives their
  // gradients.
  for (std::size_t g = 5; g < 9; ++g) {
    EXPECT_EQ(groups[g].at("axis"), "pipeline");
    EXPECT_EQ(groups[g].at("size"), 2);
    EXPECT_EQ(groups[g].at("groups"), 8192);
    EXPECT_EQ(groups[g].at("collectives"), 4 * 16);
  }
}

/// The file's name ends with nodes x ranks.
TEST(Plan, InputsForClustersFitIntoGpusWith80GB) {
  int planned = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(test::source_file("inputs/clusters"))) {
    const auto name = file.path().stem().string();
    int nodes = 0, ranks = 0;
    const auto size = name.substr(name.rfind('-') + 1);
    if (std::sscanf(size.c_str(), "%dx%d", &nodes, &ranks) != 2 || nodes > 128) continue;
    auto arguments = cluster(name, nodes * ranks);
    arguments.ranks_per_node = ranks;
    const auto [code, json] = printed(arguments);
    EXPECT_EQ(code, 0) << name;
    EXPECT_EQ(json.at("fits"), true) << name;
    ++planned;
  }
  EXPECT_GT(planned, 35);
}

TEST(Plan, DryRunIsPrintedAsATable) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.dry_run = true;
  arguments.output = Output::text;
  testing::internal::CaptureStdout();
  EXPECT_EQ(plan(arguments), 0);
  const auto text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("1 of 8 ranks simulated"), std::string::npos) << text;
  EXPECT_NE(text.find("8030261248 elements of 291 parameters: each is owned once"),
            std::string::npos)
      << text;
}

TEST(Plan, OfASmallModelHasSizesAndTimesThatAreNotZero) {
  PlanArguments arguments;
  arguments.inputs = test::source_file("inputs/tiny.yaml");
  testing::internal::CaptureStdout();
  EXPECT_EQ(plan(arguments), 0);
  const auto text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("1 rank on 1 node, "), std::string::npos) << text;
  EXPECT_NE(text.find("MiB  of 78.16 GiB: fits"), std::string::npos) << text;
  EXPECT_EQ(text.find("0.00"), std::string::npos) << text;
}

TEST(Plan, ShowsActiveParametersOfExperts) {
  PlanArguments arguments;
  arguments.inputs = test::source_file("inputs/tiny.yaml");
  arguments.overrides = {"model.file=" + test::source_file("inputs/models/mixtral-8x7b.yaml"),
                         "train.global_batch=16"};
  arguments.ranks = 16;
  arguments.ranks_per_node = 8;
  testing::internal::CaptureStdout();
  plan(arguments);
  const auto text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("46.70 B parameters, of which a token takes 12.88 B, in "), std::string::npos)
      << text;
  arguments.output = Output::json;
  const auto json = printed(arguments).json;
  EXPECT_EQ(json.at("parameters"), 46'702'792'704);
  EXPECT_EQ(json.at("active_parameters"), 12'879'925'248);
  EXPECT_EQ(json.at("imbalance"), 1);
  const auto dense = printed(cluster("llama3-8b-1x8", 8)).json;
  EXPECT_EQ(dense.at("active_parameters"), dense.at("parameters"));
}

TEST(Plan, LlamaOf70BillionParametersInNf4FitsOneGpu) {
  PlanArguments arguments;
  arguments.inputs = test::source_file("inputs/tiny.yaml");
  arguments.overrides = {"model.file=" + test::source_file("inputs/models/llama3-70b.yaml"),
                         "model.lora={rank: 16, base: nf4}",
                         "precision.parameters=bf16",
                         "data.sequence_length=2048",
                         "train.global_batch=1",
                         "train.micro_batch=1",
                         "memory.activation_checkpointing=full"};
  arguments.output = Output::json;
  const auto [code, json] = printed(arguments);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(json.at("fits"), true);
  // Matrices in 4 bits with a scale of 32 for each 64, embedding and head in bf16, adapters in fp32
  // and bf16.
  constexpr double matrices = 80.0 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3.0 * 8192 * 28672);
  const double weights = matrices * 4.5 / 8 + 2 * 2.0 * 128256 * 8192 +
                         6 * json.at("trained_parameters").get<double>();
  EXPECT_NEAR(json.at("alive_at_peak").at("weights").get<double>(), weights, 1e-3 * weights);
}

TEST(Plan, OfPairsOpensNoFile) {
  PlanArguments arguments;
  arguments.inputs = test::source_file("inputs/tiny.yaml");
  arguments.overrides = {"data.train=[not-there.jsonl]", "data.document_mask=true"};
  arguments.output = Output::json;
  const auto activations = [&] {
    const auto [code, json] = printed(arguments);
    EXPECT_EQ(code, 0);
    return json.at("alive_at_peak").at("activations").get<std::int64_t>();
  };
  const auto without = activations();
  arguments.overrides.emplace_back("train.objective=dpo");
  EXPECT_GT(activations(), without);
}

TEST(Plan, CountsMemoryCheckpointsInTheHostsMemory) {
  auto arguments = cluster("llama3-8b-1x8", 16);
  EXPECT_EQ(printed(arguments).json.at("memory_checkpoint_bytes"), 0);
  arguments.overrides = {"checkpoint.memory.every_steps=10", "sharding.strategy=full_shard"};
  auto [code, json] = printed(arguments);
  EXPECT_EQ(code, 0);
  const std::int64_t bytes = json.at("memory_checkpoint_bytes");
  // Two steps: weights and two moments in fp32, for each node's half and the other node's.
  const auto expected = 24 * json.at("parameters").get<std::int64_t>();
  EXPECT_GE(bytes, expected);
  EXPECT_LT(bytes, expected + expected / 100);
  const auto given = arguments.overrides;
  arguments.overrides.emplace_back("checkpoint.memory.partner=off");
  EXPECT_EQ(printed(arguments).json.at("memory_checkpoint_bytes"), bytes / 2);
  arguments.overrides = given;
  arguments.overrides.push_back(fmt::format("checkpoint.memory.limit={}", bytes - 1));
  EXPECT_EQ(printed(arguments).json.at("fits"), false);
  arguments.overrides.back() = fmt::format("checkpoint.memory.limit={}", bytes);
  EXPECT_EQ(printed(arguments).json.at("fits"), true);
  arguments.output = Output::text;
  testing::internal::CaptureStdout();
  EXPECT_EQ(plan(arguments), 0);
  const auto text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("memory checkpoints"), std::string::npos) << text;
}

TEST(Plan, AttainedIsSlowerByAtMostItsShare) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  const auto bound = printed(arguments).json;
  arguments.attained = true;
  const auto attained = printed(arguments).json;
  const double share = config::load_hardware("h100").attained;
  EXPECT_EQ(bound.at("attained"), false);
  EXPECT_EQ(attained.at("attained"), true);
  const double ratio =
      attained.at("tokens_per_second").get<double>() / bound.at("tokens_per_second").get<double>();
  EXPECT_NEAR(ratio, share, 0.02);  // collectives and launches keep their speed
  EXPECT_GE(ratio, share);
  EXPECT_EQ(attained.at("peak_bytes"), bound.at("peak_bytes"));
  arguments.hardware = "cpu-node";
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            "--attained: cpu-node has no key `attained`; add it, or leave --attained out");
}

TEST(Plan, MeasuredHardwareIsForItsRanksAndThreads) {
  const test::TemporaryFolder folder;
  auto hardware = config::load_hardware("cpu-node");
  hardware.threads = 4;
  hardware.measured.ranks = 2;
  hardware.measured.disk = 1e6;
  const auto on_one_node = folder.write("one-node.yaml", config::hardware_text(hardware));
  hardware.measured.between_nodes[DType::f32]["all-gather"].points = {{1e4, 1e9}};
  const auto file = folder.write("measured.yaml", config::hardware_text(hardware));
  auto arguments = cluster("llama3-8b-1x8", 4);
  arguments.inputs = test::source_file("inputs/tiny.yaml");
  arguments.hardware = on_one_node;
  arguments.ranks_per_node = 2;
  arguments.overrides = {"train.threads=2"};
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            on_one_node +
                " has no rates between nodes, but the plan has 2; measure with more than one rank");
  arguments.hardware = file;
  const auto json = printed(arguments).json;
  EXPECT_DOUBLE_EQ(json.at("checkpoint_seconds").get<double>(),
                   json.at("checkpoint_bytes").get<double>() / 1e6);
  arguments.overrides = {"train.threads=1"};
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            file +
                " was measured with 2 threads per rank, but train.threads is 1; measure with that "
                "many");
  arguments.ranks_per_node = 4;
  EXPECT_EQ(
      test::error_of([&] { plan(arguments); }),
      file + " was measured with 2 ranks per node, but the plan has 4; measure with that many");
}

TEST(Plan, ImbalanceNeedsAnExpertAxis) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.imbalance = 2;
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            "--imbalance is 2, but the mesh replicate=1 x shard=8 has no expert axis; set "
            "mesh.axes.expert");
}

// On GPUs, ranks exchange halves and add them up: no more bytes, but scratch and steps.
TEST(Plan, SumsInAFixedOrderTakeScratchAndTime) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.overrides = {"train.micro_batch=1"};
  const auto fastest = printed(arguments).json;
  arguments.overrides.emplace_back("train.reproducible=mesh");
  const auto ordered = printed(arguments).json;
  EXPECT_GT(ordered.at("peak_bytes"), fastest.at("peak_bytes"));
  EXPECT_GT(ordered.at("step_seconds"), fastest.at("step_seconds"));
  EXPECT_EQ(ordered.at("traffic"), fastest.at("traffic"));
}

TEST(Plan, ASweepOfADenseModelTakesNoImbalance) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.sweep = true;
  arguments.imbalance = 2;
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            "--imbalance is 2, but the model has no experts; leave it out");
}

TEST(Plan, TheBusiestExpertRankTakesLonger) {
  auto arguments = cluster("mixtral-8x7b-2x8", 16);
  const auto [code, uniform] = printed(arguments);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(uniform.at("mesh"), "replicate=1 x shard=2 x expert=8");
  EXPECT_GT(uniform.at("traffic").at("expert"), 0);
  arguments.imbalance = 1.5;
  const auto busiest = printed(arguments).json;
  EXPECT_EQ(busiest.at("imbalance"), 1.5);
  EXPECT_GT(busiest.at("step_seconds"), uniform.at("step_seconds"));
  arguments.imbalance = 9;
  EXPECT_EQ(test::error_of([&] { plan(arguments); }),
            "--imbalance is 9, but one of 8 ranks receives at most 4 times the mean rows if a "
            "token takes "
            "2 of 8 experts; lower --imbalance");
}

TEST(Plan, SweepTriesExpertAxesWithinANode) {
  auto arguments = cluster("mixtral-8x7b-2x8", 16);
  arguments.sweep = true;
  arguments.overrides = {"mesh.axes.tensor=1", "sharding.strategy=full_shard"};
  std::set<std::string> meshes;
  const auto json = printed(arguments).json;
  for (const auto& row : json.at("fitting")) meshes.insert(row.at("mesh").get<std::string>());
  EXPECT_TRUE(meshes.contains("replicate=1 x shard=16"));
  EXPECT_TRUE(meshes.contains("replicate=1 x shard=2 x expert=8"));
  EXPECT_FALSE(meshes.contains("replicate=1 x shard=1 x expert=16"));
}

TEST(Plan, StateAndCheckpointAreTheirFormulas) {
  const auto [code, json] = printed(cluster("llama3-8b-1x8", 8));
  const double parameters = 8030261248;
  EXPECT_EQ(code, 0);
  EXPECT_EQ(json.at("checkpoint_bytes"), 12 * parameters);
  const auto& alive = json.at("alive_at_peak");
  EXPECT_EQ(json.at("keep_bf16_weights"), true);
  EXPECT_NEAR(alive.at("weights"), (4 + 2) * parameters / 8, 1e-4 * parameters);
  EXPECT_NEAR(alive.at("gradients"), 4 * parameters / 8, 1e-4 * parameters);
  EXPECT_NEAR(alive.at("optimizer"), 8 * parameters / 8, 1e-4 * parameters);
  EXPECT_GT(json.at("mfu"), 0.3);
  EXPECT_LT(json.at("mfu"), 0.8);
}

// A step has no use of the memory that CUDA, its libraries and NCCL take.
TEST(Plan, ReservesGpuMemoryForLibraries) {
  constexpr std::int64_t h200 = 150'000'000'000, mib = 1 << 20;
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.hardware = "h200";
  EXPECT_EQ(printed(arguments).json.at("device_bytes"), h200 - 2048 * mib);
  arguments.ranks = arguments.ranks_per_node = 1;
  const auto one = printed(arguments).json;
  EXPECT_EQ(one.at("device_bytes"), h200 - 1024 * mib);
  EXPECT_EQ(one.at("fits"), one.at("peak_bytes") <= one.at("device_bytes"));
}

// 8B on one H200 by docs/gpu.md: 139.5 of 139.7 GiB do not fit.
TEST(Plan, RefusesAStepThatLeavesNoRoomForLibraries) {
  constexpr double gib = 1 << 30;
  EXPECT_LT(static_cast<double>(plan::usable_gpu_memory(
                static_cast<std::int64_t>(139.7 * gib) - plan::context_bytes, 1)),
            139.5 * gib);
  EXPECT_EQ(plan::usable_gpu_memory(1 << 20, 8), 0);
}

TEST(Plan, KeepsBf16WeightsWhereTheyFit) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  const auto kept = printed(arguments).json;
  const auto limit = kept.at("peak_bytes").get<std::int64_t>() * 10 / 9;
  const auto with_limit = [&](std::int64_t bytes) {
    arguments.overrides = {"memory.device_limit=" + std::to_string(bytes)};
    return printed(arguments).json;
  };
  EXPECT_EQ(with_limit(limit + 2).at("keep_bf16_weights"), true);
  const auto cast = with_limit(limit - 2);
  EXPECT_EQ(cast.at("keep_bf16_weights"), false);
  EXPECT_EQ(cast.at("fits"), true);
  EXPECT_LT(cast.at("peak_bytes"), kept.at("peak_bytes"));
  EXPECT_EQ(cast.at("traffic"), kept.at("traffic"));
}

TEST(Plan, LossChunksAreThoseOfTheDeviceThatIsPlanned) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  const auto peak = [&](const std::string& chunk) {
    arguments.overrides = {"memory.loss_chunk=" + chunk};
    return printed(arguments).json.at("peak_bytes").get<std::int64_t>();
  };
  EXPECT_EQ(peak("auto"), peak("4096"));
  EXPECT_GT(peak("auto"), peak("1024"));
  arguments.hardware = "cpu-node";
  EXPECT_EQ(peak("auto"), peak("1024"));
  EXPECT_LT(peak("auto"), peak("4096"));
}

TEST(Plan, FasterLinksExposeLess) {
  auto arguments = cluster("llama3-8b-1x8", 64);
  arguments.overrides = {"memory.activation_checkpointing=none"};
  const auto near = printed(arguments).json;
  arguments.ranks_per_node = 1;
  const auto far = printed(arguments).json;
  EXPECT_GT(far.at("exposed_seconds"), near.at("exposed_seconds"));
  EXPECT_GT(far.at("step_seconds"), near.at("step_seconds"));
  EXPECT_EQ(far.at("traffic"), near.at("traffic"));
  EXPECT_EQ(far.at("peak_bytes"), near.at("peak_bytes"));
}

TEST(Plan, ManyMicroBatchesTakeWhatTheirLastOnesTake) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  const auto inputs = config::load_inputs(
      arguments.inputs, {"train.global_batch=96", "sharding.strategy=hybrid_shard"});
  const auto setup = train::plan_setup(inputs, comm::planned_topology(16, 8, 0));
  ASSERT_EQ(setup.micro_batches, 6);
  const auto hardware = config::load_hardware("a100-80");
  const auto counted = plan::plan_step(setup, hardware);
  const auto taken = plan::plan_step(setup, hardware, 0, 6);
  EXPECT_EQ(counted.traffic, taken.traffic);
  EXPECT_EQ(counted.peak, taken.peak);
  EXPECT_NEAR(counted.seconds, taken.seconds, 1e-6 * taken.seconds);
  EXPECT_NEAR(counted.exposed_seconds, taken.exposed_seconds, 1e-6 * taken.seconds);
}

TEST(Plan, ReturnsOneWhereItDoesNotFit) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.hardware = "a100-40";
  arguments.overrides = {"sharding.strategy=no_shard"};
  const auto [code, json] = printed(arguments);
  EXPECT_EQ(code, 1);
  EXPECT_EQ(json.at("fits"), false);
  EXPECT_GT(json.at("peak_bytes"), json.at("device_bytes"));
}

TEST(Plan, RanksThatDoNotDivideAreRefusedWithTheNumbers) {
  auto arguments = cluster("llama3.1-405b-128x8", 16384);
  const auto error = test::error_of([&] { plan(arguments); });
  EXPECT_NE(error.find("not a multiple of 16384 ranks"), std::string::npos) << error;
  EXPECT_NE(error.find("make it 16384, or let ranks share"), std::string::npos) << error;
  arguments = cluster("llama3-8b-1x8", 12);
  arguments.overrides = {"sharding.strategy=hybrid_shard"};
  EXPECT_NE(test::error_of([&] { plan(arguments); }), "");
}

TEST(Plan, SweepSortsWhatFitsByTokensPerSecond) {
  auto arguments = cluster("llama3-8b-1x8", 8);
  arguments.sweep = true;
  const auto [code, json] = printed(arguments);
  EXPECT_EQ(code, 0);
  const auto& rows = json.at("fitting");
  EXPECT_GT(rows.size(), 20U);
  const auto limit = printed(cluster("llama3-8b-1x8", 8)).json.at("device_bytes").get<double>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_LE(rows[i].at("peak_bytes"), limit);
    const auto& faster = rows[i == 0 ? 0 : i - 1];
    EXPECT_LE(rows[i].at("tokens_per_second"), faster.at("tokens_per_second"));
  }
  arguments.overrides = {"train={micro_batch: 2}", "sharding.strategy=shard_grad_op"};
  const auto fewer = printed(arguments).json;
  for (const auto& row : fewer.at("fitting")) {
    EXPECT_EQ(row.at("micro_batch"), 2);
    EXPECT_EQ(row.at("strategy"), "shard_grad_op");
  }
}

TEST(Plan, SweepTriesContextSizesThatLeave8192Tokens) {
  auto arguments = cluster("llama3.1-8b-128k", 8);
  arguments.sweep = true;
  arguments.overrides = {"sharding.strategy=full_shard", "mesh.axes.tensor=1",
                         "train.micro_batch=1", "memory.activation_checkpointing=full"};
  const auto meshes = [&](const std::string& length) {
    auto asked = arguments;
    asked.overrides.push_back("data.sequence_length=" + length);
    std::vector<std::string> all;
    const auto json = printed(asked).json;
    for (const auto& row : json.at("fitting")) all.push_back(row.at("mesh"));
    std::ranges::sort(all);
    return all;
  };
  EXPECT_EQ(meshes("131072"),
            (std::vector<std::string>{"replicate=1 x shard=1 x context=8",
                                      "replicate=1 x shard=2 x context=4",
                                      "replicate=1 x shard=4 x context=2"}));  // whole: too long
  EXPECT_EQ(meshes("16384"), (std::vector<std::string>{"replicate=1 x shard=4 x context=2",
                                                       "replicate=1 x shard=8"}));
}

// An exchange sends what the gradients of a step would.
TEST(Plan, ReplicasThatTrainApartHaveExchanges) {
  auto arguments = cluster("llama3-8b-1x8", 16);
  arguments.overrides = {"sharding.strategy=hybrid_shard"};
  const auto together = printed(arguments).json;
  EXPECT_TRUE(together.at("exchange").is_null());
  const auto apart = [&](const std::string& key) {
    auto other = arguments;
    other.overrides.push_back("optimizer.outer.every_steps=32");
    if (!key.empty()) other.overrides.push_back("optimizer.outer." + key);
    return printed(other);
  };
  const auto plain = apart("").json, late = apart("delay_steps=1").json;
  EXPECT_EQ(plain.at("traffic_between_nodes").at("replicate"), 0);
  EXPECT_EQ(plain.at("exchange").at("traffic").at("replicate"),
            together.at("traffic").at("replicate"));
  EXPECT_EQ(plain.at("exchange").at("every_steps"), 32);
  EXPECT_EQ(plain.at("exchange").at("exposed_seconds"), plain.at("exchange").at("seconds"));
  EXPECT_EQ(late.at("exchange").at("exposed_seconds"), 0);
  EXPECT_GT(plain.at("step_seconds"), late.at("step_seconds"));
}

TEST(Plan, SweepRelievesTheNetworkIfStepsWaitForIt) {
  const test::TemporaryFolder folder;
  auto arguments = cluster("llama3-8b-1x8", 16);
  arguments.sweep = true;
  arguments.overrides = {"mesh.axes.tensor=1", "sharding.strategy=full_shard",
                         "train.micro_batch=1", "memory.activation_checkpointing=full",
                         "mesh.axes.pipeline=1"};
  const std::string of_h100 = "bandwidth: 48.5e9",
                    text = read_file(test::source_file("inputs/hardware/h100.yaml"), 1 << 20);
  const auto rows = [&](const std::string& between_nodes) {
    auto changed = text;
    arguments.hardware = folder.write(
        "network.yaml", changed.replace(changed.find(of_h100), of_h100.size(), between_nodes));
    return printed(arguments).json.at("fitting");
  };
  const auto fast = rows(of_h100);
  ASSERT_EQ(fast.size(), 1U);
  EXPECT_EQ(fast[0].at("gather"), "auto");
  const auto slow = rows("bandwidth: 1e9");
  ASSERT_EQ(slow.size(), 2U);
  EXPECT_EQ(slow[0].at("gather"), "int8");
  EXPECT_EQ(slow[0].at("reduce_dtype"), "int8");
  EXPECT_EQ(slow[1].at("gather"), "auto");
  // With replicas, also by exchanges every 32 steps.
  arguments.overrides[1] = "sharding.strategy=hybrid_shard";
  const auto replicas = rows("bandwidth: 1e9");
  ASSERT_EQ(replicas.size(), 3U);
  EXPECT_EQ(replicas[0].at("outer_every_steps"), 32);
  EXPECT_EQ(replicas[1].at("reduce_dtype"), "int8");
  EXPECT_EQ(replicas[2].at("outer_every_steps"), 0);
}

TEST(Plan, SweepTriesPipelineStagesOnNodesOfTheirOwn) {
  if (test::sanitized) GTEST_SKIP() << "arithmetic that the other plans do too, for long";
  auto arguments = cluster("llama3.1-405b-2048x8", 16384);
  arguments.sweep = true;
  arguments.overrides = {"mesh.axes.tensor=8", "sharding.strategy=shard_grad_op",
                         "train.micro_batch=1", "memory.activation_checkpointing=full",
                         "sharding.gather=auto"};
  const auto json = printed(arguments).json;
  const auto& fastest = json.at("fitting").front();
  EXPECT_EQ(fastest.at("mesh"), "replicate=1 x pipeline=4 x shard=512 x tensor=8");
  EXPECT_EQ(fastest.at("chunks"), 4);
  arguments.overrides.push_back("mesh.axes.pipeline=8");
  const auto eight = printed(arguments).json;
  std::set<int> chunks;
  for (const auto& row : eight.at("fitting")) {
    EXPECT_EQ(row.at("mesh"), "replicate=1 x pipeline=8 x shard=256 x tensor=8");
    chunks.insert(row.at("chunks").get<int>());
  }
  EXPECT_TRUE(chunks.contains(1));
}

TEST(Plan, SweepOfAModelThatFitsNowhereSaysTheLeastAndTheWayOut) {
  if (test::sanitized) GTEST_SKIP() << "arithmetic that the other plans do too, for long";
  auto arguments = cluster("llama3.1-405b-128x8", 8);
  arguments.sweep = true;
  const auto error = test::error_of([&] { plan(arguments); });
  EXPECT_NE(error.find("nothing fits into h100 on 8 ranks: the smallest peak is"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("use more ranks"), std::string::npos);
}

}  // namespace
}  // namespace llamesh::app
