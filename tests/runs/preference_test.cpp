#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/models/hf_export.hpp"
#include "core/json.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"
#include "runs/whole_run.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "train/records/run_metrics.hpp"
#include "train/run/reference_files.hpp"

// Training on pairs of answers: against TRL, on every kind of mesh, and across launches.

namespace llamesh::test {
namespace {

using enum sharding::Strategy;
using train::Objective;

const std::string golden_folder = source_file("tests/runs/golden");

nlohmann::json golden() {
  return parse_json(read_file(golden_folder + "/preference.json", 1 << 20), "preference.json");
}

/// Writes a file that all ranks then see, and returns its name.
std::string shared_file(const std::filesystem::path& path, const std::string& text) {
  if (world().rank() == 0) std::ofstream(path) << text;
  world().barrier();
  return path.string();
}

/// Returns inputs for ten steps on the golden pairs, four in each, as TRL reads them.
train::Inputs golden_inputs(const std::filesystem::path& folder, const nlohmann::json& of_case) {
  train::Inputs in;
  in.run.folder = (folder / "run").string();
  in.pretrained.hf = golden_folder + "/preference_model";
  in.pretrained.load_weights = true;
  in.model = model::read_config_json(in.pretrained.hf);
  if (of_case.contains("lora")) {
    in.pretrained.adapters = golden_folder + "/preference_adapter";
    in.model.lora = model::read_adapter_config(in.pretrained.adapters);
  }
  in.data.train = {
      shared_file(folder / "pairs.jsonl", read_file(golden_folder + "/preference.jsonl", 1 << 20))};
  in.data.format = data::Format::jsonl;
  in.data.sequence_length = 128;
  in.data.order = data::Order::sequential;
  in.data.packing = data::Packing::none;
  in.train.objective = of_case.at("loss_type") == "ipo" ? Objective::ipo : Objective::dpo;
  in.train.beta = of_case.at("beta");
  in.train.steps = 10;
  in.train.global_batch = 4;
  in.train.threads = 1;
  in.optimizer.lr = of_case.at("lr");
  in.optimizer.beta1 = of_case.at("betas").at(0);
  in.optimizer.beta2 = of_case.at("betas").at(1);
  in.optimizer.eps = of_case.at("eps");
  in.optimizer.weight_decay = of_case.at("weight_decay");
  in.optimizer.clip_norm = 0;
  in.schedule.name = optim::ScheduleName::constant;
  in.log.report = false;
  return in;
}

train::RunMetrics metrics_of(const train::Inputs& in) {
  return train::read_metrics(in.run.folder + "/metrics.jsonl");
}

/// Checks a run against TRL's numbers for a case.
void expect_golden(const train::Inputs& in, const nlohmann::json& of_case) {
  const auto metrics = metrics_of(in);
  ASSERT_EQ(metrics.steps.size(), 10U);
  for (const auto& [step, record] : metrics.steps) {
    SCOPED_TRACE(fmt::format("step {}", step));
    const auto expected = [&](const char* key) {
      return of_case.at(key).at(static_cast<std::size_t>(step - 1)).get<double>();
    };
    const double loss = expected("loss"), norm = expected("grad_norm");
    EXPECT_NEAR(record.loss, loss, 1e-4 * loss);
    EXPECT_NEAR(record.grad_norm, norm, 1e-4 * norm);
    EXPECT_NEAR(record.chosen_reward.value(), expected("rewards_chosen"), 1e-4);
    EXPECT_NEAR(record.rejected_reward.value(), expected("rewards_rejected"), 1e-4);
    EXPECT_NEAR(record.reward_margin.value(), expected("rewards_margins"), 1e-4);
    EXPECT_NEAR(record.chosen_log_prob.value(), expected("logps_chosen"), 1e-3);
    EXPECT_NEAR(record.rejected_log_prob.value(), expected("logps_rejected"), 1e-3);
    if (step > 1) {  // in the first, rewards are 0 but for rounding
      EXPECT_EQ(record.reward_accuracy, expected("rewards_accuracies"));
    }
  }
}

/// Meshes over all ranks that need at most the four pairs in a step.
std::vector<comm::MeshOptions> meshes() {
  std::vector<comm::MeshOptions> all{{}};
  if (world().size() % 2 != 0) return all;
  all.emplace_back().tensor = 2;
  all.emplace_back().context = 2;
  all.emplace_back().pipeline = 2;
  if (world().size() == 4) {
    all.push_back(all[1]);
    all.back().context = 2;
    all.emplace_back().ranks_per_node = 2;
  }
  return all;
}

TEST(Preference, GivesTrlsNumbers) {
  const auto cases = golden();
  for (const char* name : {"dpo", "ipo", "dpo_lora", "ipo_lora"})
    for (const auto& mesh : meshes()) {
      SCOPED_TRACE(fmt::format("{}, tensor {}, context {}, pipeline {}", name, mesh.tensor,
                               mesh.context, mesh.pipeline));
      const SharedFolder folder;
      auto in = golden_inputs(folder.path(), cases.at(name));
      in.mesh = mesh;
      in.sharding.strategy = mesh.ranks_per_node > 0 ? hybrid_shard : full_shard;
      run_to_the_end(in);
      expect_golden(in, cases.at(name));
    }
}

/// Returns pairs with many lengths.
std::string many_pairs() {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    const std::string good(static_cast<std::size_t>(1 + i * 7 % 11),
                           static_cast<char>('a' + i % 9));
    const std::string bad(static_cast<std::size_t>(1 + i * 5 % 13), static_cast<char>('k' + i % 8));
    lines += fmt::format(R"({{"prompt": "Q{}?", "chosen": "{}", "rejected": "{}"}})", i, good, bad);
    lines += "\n";
  }
  return lines;
}

/// Returns inputs for them; a sequence takes several.
train::Inputs packed_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.vocab_size = 259;
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 10;
  in.model.initializer_range = 0.1;
  in.data.train = {shared_file(folder / "pairs.jsonl", many_pairs())};
  in.data.format = data::Format::jsonl;
  in.data.sequence_length = 96;
  in.train.objective = Objective::dpo;
  in.train.beta = 0.5;
  in.train.micro_batch = 2;
  in.train.global_batch = 8;
  in.train.steps = 8;
  in.schedule.warmup_steps = 0;
  return in;
}

TEST(Preference, TrainsAlikeOnEveryMesh) {
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (const auto& mesh : meshes()) {
    SCOPED_TRACE(fmt::format("tensor {}, context {}, pipeline {}", mesh.tensor, mesh.context,
                             mesh.pipeline));
    in.mesh = mesh;
    for (const auto strategy : {full_shard, no_shard, hybrid_shard_zero2}) {
      in.sharding.strategy = strategy;
      expect_alike(run(world(), in), alone);
    }
    in.sharding.strategy = full_shard;
    in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
    in.sharding.offload = sharding::Offload::all;
    expect_alike(run(world(), in), alone);
    in.memory.activation_checkpointing = model::ActivationCheckpointing::none;
    in.sharding.offload = sharding::Offload::none;
  }
}

TEST(Preference, TrainsExpertsAlike) {
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  in.model.family = "mixtral";
  in.model.num_experts = 4;
  in.model.num_experts_per_tok = 2;
  in.train.objective = Objective::ipo;
  const auto alone = run_alone(in);
  in.mesh.expert = world().size() % 2 == 0 ? 2 : 1;
  expect_alike(run(world(), in), alone);
}

TEST(Preference, HasTheSameBitsOnEveryMesh) {
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  in.train.reproducible = train::Reproducible::mesh;
  const auto alone = run_alone(in);
  for (const auto strategy : {full_shard, hybrid_shard}) {
    in.sharding.strategy = strategy;
    in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
    const auto here = run(world(), in);
    EXPECT_EQ(here.losses, alone.losses);
    EXPECT_EQ(here.norms, alone.norms);
  }
}

TEST(Preference, HasTheSameBitsOnVirtualContextRanks) {
  if (world().size() == 1) GTEST_SKIP() << "needs context ranks to compare with";
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  in.train.reproducible = train::Reproducible::mesh;
  in.train.reproducible_context = 2;
  const auto alone = run_alone(in);
  in.mesh.context = 2;
  const auto here = run(world(), in);
  EXPECT_EQ(here.losses, alone.losses);
  EXPECT_EQ(here.norms, alone.norms);
}

// Without an update, a step on all pairs has the same loss as a validation set with them.
TEST(Preference, ValidatesOnPairs) {
  const SharedFolder folder;
  auto in = golden_inputs(folder.path(), golden().at("ipo"));
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 1;
  in.train.global_batch = 12;
  in.train.steps = 2;
  in.optimizer.lr = 0;
  in.sharding.strategy = full_shard;
  run_to_the_end(in);
  const auto metrics = metrics_of(in);
  ASSERT_EQ(metrics.validation.size(), 2U);
  for (const auto& [step, loss] : metrics.validation)
    EXPECT_NEAR(loss, metrics.steps.at(step).loss, 1e-5 * loss);
  std::ifstream lines(in.run.folder + "/metrics.jsonl");
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    const auto json = parse_json(line, "metrics.jsonl");
    if (json.value("event", "") != "validation") continue;
    found = true;
    EXPECT_NEAR(json.at("logps").at("chosen").get<double>(),
                metrics.steps.at(1).chosen_log_prob.value(), 1e-3);
    EXPECT_NEAR(json.at("rewards").at("margins").get<double>(), 0, 1e-4);
  }
  EXPECT_TRUE(found);
}

std::vector<std::filesystem::path> reference_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().find(".reference-") != std::string::npos)
      files.push_back(entry.path());
  return files;
}

TEST(Preference, ResumesWithTheSameBits) {
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  in.train.steps = 12;
  run_to_the_end(in);
  const auto files = reference_files(folder.path());
  ASSERT_EQ(files.size(), 1U);
  const auto written = std::filesystem::last_write_time(files[0]);
  auto other = in;
  other.run.folder += "-killed";
  train_and_vanish(other, 7);
  run_to_the_end(other);
  EXPECT_EQ(dataset(other, "12", "/model/model.norm.weight"),
            dataset(in, "12", "/model/model.norm.weight"));
  // Both runs read one file.
  EXPECT_EQ(reference_files(folder.path()), files);
  EXPECT_EQ(std::filesystem::last_write_time(files[0]), written);
}

// The training pairs' file stays as it is, so that runs that refer to it go on.
TEST(Preference, AddsTheReferencesOfAnotherSet) {
  const SharedFolder folder;
  auto in = packed_inputs(folder.path());
  in.train.steps = 12;
  run_to_the_end(in);
  ASSERT_EQ(reference_files(folder.path()).size(), 1U);
  const auto written = std::filesystem::last_write_time(reference_files(folder.path())[0]);
  const auto first = reference_files(folder.path())[0];
  auto other = in;
  other.run.folder += "-other";
  const auto all = many_pairs();
  other.data.validation = {
      shared_file(folder.path() / "more.jsonl", all.substr(0, all.find('\n', all.size() / 2) + 1))};
  other.evaluate.every_steps = 12;
  other.train.steps = 0;
  run_to_the_end(other);
  EXPECT_EQ(reference_files(folder.path()).size(), 2U);
  EXPECT_EQ(std::filesystem::last_write_time(first), written);
  in.data.validation = other.data.validation;
  in.evaluate.every_steps = 2;
  in.train.steps = 14;
  run_to_the_end(in);
  EXPECT_EQ(metrics_of(in).validation.size(), 1U);
}

TEST(Preference, RefusesAnotherReference) {
  const auto alone = world().split(world().rank(), 0);
  const SharedFolder shared;
  const TemporaryFolder folder;
  auto in = packed_inputs(shared.path());
  in.run.folder = folder.path() / "run";
  in.data.train = {folder.write("mine.jsonl", many_pairs())};
  const auto setup = plan::make_planned_setup(alone, in);
  comm::DeviceMesh mesh(alone, setup.topology, setup.mesh);
  train::Trainer trainer(alone, setup, mesh);
  trainer.start();
  const auto find = [&] { return train::find_references(alone, setup, trainer, 7, [] {}); };
  const auto made = find();
  const auto files = reference_files(folder.path());
  ASSERT_EQ(files.size(), 1U);
  const auto text = read_file(files[0], 1 << 20);
  EXPECT_EQ(find(), made);
  const auto restore = [&] { train::restore_references(alone, setup, trainer, made); };
  restore();
  const auto in_run_folder = std::filesystem::path(in.run.folder) / files[0].filename();
  std::filesystem::create_directories(in.run.folder);
  std::filesystem::rename(files[0], in_run_folder);
  restore();
  std::filesystem::rename(in_run_folder, files[0]);
  const auto error_with = [&](const std::string& changed) {
    std::ofstream(files[0]) << changed;
    return error_of(restore);
  };
  auto other = text;
  other[200] = static_cast<char>(other[200] ^ 1);
  EXPECT_NE(error_with(other).find("is not the file with which the run was trained"),
            std::string::npos);
  EXPECT_NE(error_with(text.substr(0, text.size() - 4)).find("60 pairs have 120 of type <f4"),
            std::string::npos);
  std::filesystem::remove(files[0]);
  EXPECT_NE(error_of(restore).find("is missing, which has the reference model's"),
            std::string::npos);
  find();  // as another run of the same inputs does
  EXPECT_EQ(read_file(files[0], 1 << 20), text);
}

// The run folder has the file if the data are where nobody may write.
TEST(Preference, KeepsTheReferenceInTheRunFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const auto alone = world().split(world().rank(), 0);
  const SharedFolder shared;
  const TemporaryFolder folder, data;
  auto in = packed_inputs(shared.path());
  in.run.folder = folder.path() / "run";
  in.data.train = {data.write("mine.jsonl", many_pairs())};
  std::filesystem::permissions(
      data.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const auto setup = plan::make_planned_setup(alone, in);
  comm::DeviceMesh mesh(alone, setup.topology, setup.mesh);
  train::Trainer trainer(alone, setup, mesh);
  trainer.start();
  const auto made = train::find_references(alone, setup, trainer, 7, [] {});
  EXPECT_EQ(reference_files(in.run.folder).size(), 1U);
  train::restore_references(alone, setup, trainer, made);
  std::filesystem::permissions(data.path(), std::filesystem::perms::owner_all);
}

TEST(Preference, ComparesWithAFolder) {
  const SharedFolder folder;
  const auto of_case = golden().at("dpo");
  auto first = golden_inputs(folder.path(), of_case);
  run_to_the_end(first);
  const auto trained = folder.path() / "trained";
  checkpoint::export_hf(checkpoint_of(first, "10"), trained, {}, world());
  for (const bool lora : {false, true}) {
    auto in = golden_inputs(folder.path(), golden().at(lora ? "dpo_lora" : "dpo"));
    in.run.folder += lora ? "-lora" : "-second";
    in.reference.hf = in.pretrained.hf;
    in.pretrained.hf = trained.string();
    in.sharding.strategy = full_shard;
    in.train.steps = 1;
    run_to_the_end(in);
    const auto& record = metrics_of(in).steps.at(1);
    double reference = 0;
    for (const std::size_t pair : {0, 1, 2, 3})
      reference += of_case.at("reference").at("chosen").at(pair).get<double>() / 4;
    EXPECT_GT(record.reward_margin.value(), 1);
    EXPECT_NEAR(record.chosen_reward.value(),
                in.train.beta * (record.chosen_log_prob.value() - reference), 1e-4);
  }
  auto in = golden_inputs(folder.path(), of_case);
  in.run.folder += "-third";
  in.reference.hf = source_file("tests/model/golden/hf/gqa_8_2");
  const auto error = left_by([&] { run_to_the_end(in); }, ExitCode::bad_input);
  EXPECT_NE(error.find(world().rank() == 0 ? "holds another model" : "follows"), std::string::npos);
}

TEST(Preference, IsRefusedForOtherInputs) {
  const SharedFolder folder;
  const auto refused = [&](const auto& change, const std::string& message) {
    auto in = packed_inputs(folder.path());
    change(in);
    const auto error =
        error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  refused([](auto& in) { in.data.format = data::Format::text; },
          "train.objective: dpo compares answers in JSON records");
  refused([](auto& in) { in.data.loss_on = data::LossOn::all; },
          "data.loss_on is all; leave it out");
  refused(
      [](auto& in) {
        in.train.objective = Objective::next_token;
        in.reference.hf = "x";
      },
      "reference.hf is set, but train.objective is next_token");
}

}  // namespace
}  // namespace llamesh::test
