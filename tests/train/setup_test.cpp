#include "train/setup/setup.hpp"

#include <gtest/gtest.h>

#include "comm/mpi/session.hpp"
#include "runs/small_run.hpp"
#include "train/setup/fewer_stages.hpp"

namespace llamesh::train {
namespace {

class SetupTest : public testing::Test {
 protected:
  /// Checks that the setup fails on all ranks: rank `reporting` has the error text, the others
  /// follow with the same exit code.
  void expect_error(const std::string& part, int reporting = 0) {
    const int rank = test::world().rank();
    try {
      make_setup(test::world(), inputs_);
      ADD_FAILURE() << "no error was thrown";
    } catch (const comm::PeerFailure& failed) {
      EXPECT_NE(rank, reporting);
      EXPECT_EQ(failed.code(), ExitCode::bad_input);
    } catch (const Error& error) {
      EXPECT_EQ(rank, reporting);
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(inputs_.run.folder)) << "a file was written all the same";
  }
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  test::TemporaryFolder folder_;

 protected:
  Inputs inputs_ = test::small_inputs(folder_.path());
};

TEST_F(SetupTest, FillsInWhatWasLeftOpen) {
  inputs_.run.name = "lamps";
  inputs_.run.folder = "";
  inputs_.train.micro_batch = 2;
  inputs_.train.global_batch = 0;
  const auto setup = make_setup(test::world(), inputs_);
  const int ranks = test::world().size();
  EXPECT_EQ(setup.inputs.run.folder, "runs/lamps");
  EXPECT_EQ(setup.inputs.train.global_batch, 2 * ranks);
  EXPECT_EQ(setup.micro_batches, 1);
  EXPECT_EQ(setup.inputs.model.head_dim, 6);
  EXPECT_EQ(setup.mesh.ranks(), ranks);
  EXPECT_EQ(setup.layout->units()[0].shards, setup.mesh.group_size(setup.mesh.named({"shard"})));
  EXPECT_TRUE(setup.train_tokens);
  EXPECT_TRUE(setup.validation_tokens.empty());
}

TEST_F(SetupTest, CountsTheMicroBatches) {
  inputs_.train.micro_batch = 2;
  inputs_.train.global_batch = 24;
  EXPECT_EQ(make_setup(test::world(), inputs_).micro_batches, 12 / test::world().size());
}

TEST_F(SetupTest, RefusesAGlobalBatchThatTheRanksCannotShare) {
  inputs_.train.micro_batch = 2;
  inputs_.train.global_batch = 13;
  const int ranks = test::world().size();
  expect_error(
      fmt::format("global_batch 13 is not a multiple of {} ranks x train.micro_batch 2 = {}", ranks,
                  2 * ranks));
}

TEST_F(SetupTest, GathersAndReducesOnceAStepWithStages) {
  using sharding::Reduce;
  using sharding::ReshardAfterForward;
  const auto planned = [&] { return plan_setup(inputs_, comm::planned_topology(4, 4, 0)); };
  EXPECT_EQ(planned().inputs.sharding.reduce, Reduce::each);
  EXPECT_EQ(planned().pipeline_warning, "");
  inputs_.mesh.pipeline = 2;
  auto setup = planned();
  EXPECT_EQ(setup.inputs.sharding.reduce, Reduce::last);
  EXPECT_EQ(setup.inputs.sharding.reshard_after_forward, ReshardAfterForward::no);
  EXPECT_EQ(setup.chunks.size(), 2U);
  EXPECT_EQ(setup.loss_ranks(0), (std::vector<int>{2, 3}));
  EXPECT_EQ(setup.loss_ranks(3), (std::vector<int>{2, 3}));
  EXPECT_EQ(setup.pipeline_warning, "");
  inputs_.sharding.reduce = Reduce::each;
  inputs_.sharding.reshard_after_forward = ReshardAfterForward::yes;
  setup = planned();
  EXPECT_EQ(setup.inputs.sharding.reduce, Reduce::each);
  EXPECT_EQ(setup.inputs.sharding.reshard_after_forward, ReshardAfterForward::yes);
  inputs_.train.global_batch = 2;
  EXPECT_EQ(planned().pipeline_warning,
            "a step has 1 micro-batch for 2 pipeline stages, each of which waits for 100 % of the "
            "time of its passes; raise train.global_batch");
}

TEST_F(SetupTest, FindsStagesForTheRanksThatAreLeft) {
  inputs_.model.num_hidden_layers = 4;
  inputs_.model.num_key_value_heads = 2;
  inputs_.train.global_batch = 24;
  const auto stages_on = [&](int ranks, const comm::MeshOptions& mesh) {
    auto in = inputs_;
    in.mesh = mesh;
    if (!has_too_many_stages(in, ranks)) return 0;
    return with_fewer_stages(in, comm::planned_topology(ranks, ranks, 0)).mesh.pipeline;
  };
  EXPECT_EQ(stages_on(4, {.pipeline = 4}), 0);
  EXPECT_EQ(stages_on(6, {.pipeline = 4}), 0);  // may do with fewer replicas
  EXPECT_EQ(stages_on(3, {.pipeline = 4}), 3);
  EXPECT_EQ(stages_on(6, {.pipeline = 4, .tensor = 2}), 3);
  EXPECT_EQ(stages_on(1, {.pipeline = 4}), 1);
  inputs_.pipeline.chunks = 2;
  EXPECT_EQ(stages_on(3, {.pipeline = 4}), 1);  // 2 leave a rank over, 3 have too few layers
  EXPECT_EQ(stages_on(2, {.pipeline = 4}), 2);
  inputs_.sharding.strategy = sharding::Strategy::hybrid_shard;
  EXPECT_EQ(stages_on(4, {.shard = 2, .pipeline = 4}), 2);
  EXPECT_EQ(stages_on(3, {.shard = 2, .pipeline = 4}), 4);  // then refused as it is
}

TEST_F(SetupTest, RefusesWhatStagesCannotDo) {
  const auto refusal = [&](const auto& change) {
    auto in = inputs_;
    in.model.num_hidden_layers = 4;
    in.mesh.pipeline = 2;
    change(in);
    return test::error_of([&] { plan_setup(in, comm::planned_topology(2, 2, 0)); });
  };
  EXPECT_EQ(refusal([](Inputs& in) { in.mesh.pipeline = 1, in.pipeline.chunks = 2; }),
            "pipeline.chunks is set, but there are no stages; set mesh.axes.pipeline, or leave it "
            "out");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.pipeline.chunks = 2;
              in.sharding.wrap.wrap = sharding::Wrap::none;
            }),
            "pipeline.chunks is 2, but with sharding.wrap=none one unit has weights of several "
            "chunks; use sharding.wrap=layer");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.pipeline.chunks = 2;
              in.train.global_batch = 5;
            }),
            "a step's 5 micro-batches do not divide into 2 rounds over 2 pipeline stages with 2 "
            "chunks each; make train.global_batch give a multiple of 2, or set pipeline.chunks=1");
}

TEST_F(SetupTest, RefusesWhatHasNoOrderOnEveryMesh) {
  const auto refusal = [&](int ranks, const auto& change) {
    auto in = inputs_;
    in.model.num_hidden_layers = 4;
    in.train.global_batch = 16;
    in.train.reproducible = Reproducible::mesh;
    change(in);
    return test::error_of([&] { plan_setup(in, comm::planned_topology(ranks, ranks, 0)); });
  };
  EXPECT_EQ(
      refusal(2, [](Inputs& in) { in.train.global_batch = 12; }),
      "train.reproducible is mesh, which adds up powers of two, but train.global_batch is 12; "
      "use 8 or 16, or train.reproducible=launch");
  EXPECT_EQ(
      refusal(6, [](Inputs& in) { in.mesh = {.replicate = 2}, in.train.global_batch = 6; }),
      "train.reproducible is mesh, which adds up powers of two, but mesh.axes.shard is 3; use "
      "2 or 4, or train.reproducible=launch");
  EXPECT_EQ(
      refusal(6, [](Inputs& in) { in.mesh.tensor = 3; }),
      "train.reproducible is mesh, which adds up powers of two, but mesh.axes.tensor is 3; use "
      "2 or 4, or train.reproducible=launch");
  const auto with_context = [&](const auto& change) {
    return refusal(4, [&](Inputs& in) {
      in.mesh = {.shard = 2, .context = 2};
      in.sharding.strategy = sharding::Strategy::full_shard;
      change(in);
    });
  };
  EXPECT_EQ(with_context([](Inputs& in) { in.sharding.reduce = sharding::Reduce::last; }),
            "train.reproducible is mesh, which adds up the parts of each sequence first, but "
            "sharding.reduce is last; use each, or mesh.axes.context=1");
  EXPECT_EQ(with_context([](Inputs& in) {
              in.mesh.shard = 0;
              in.sharding.strategy = sharding::Strategy::no_shard;
            }),
            "train.reproducible is mesh, which adds up the parts of each sequence first, but "
            "weights are not sharded along context; use full_shard or hybrid_shard");
  EXPECT_EQ(refusal(2, [](Inputs& in) { in.precision.reduce = DType::bf16; }),
            "train.reproducible is mesh, which adds up in fp32, but precision.reduce is bf16; use "
            "fp32");
  EXPECT_EQ(refusal(2, [](Inputs& in) { in.evaluate.batches = 2; }),
            "train.reproducible is mesh, but evaluate.batches counts batches of each rank, so "
            "another mesh would evaluate other sequences; use evaluate.sequences");
  EXPECT_EQ(refusal(2,
                    [](Inputs& in) {
                      in.model.family = "mixtral";
                      in.model.num_experts = 2;
                      in.model.num_experts_per_tok = 1;
                      in.model.output_router_logits = true;
                    }),
            "train.reproducible is mesh, but model.output_router_logits adds a loss on the tokens "
            "that all ranks have at a time; set it to false");
  EXPECT_EQ(refusal(2,
                    [](Inputs& in) {
                      in.mesh.pipeline = 2;
                      in.model.tie_word_embeddings = true;
                    }),
            "train.reproducible is mesh, but with mesh.axes.pipeline 2 the tied embedding's two "
            "gradients are summed on two stages; use mesh.axes.pipeline=1, or untie it "
            "(model.tie_word_embeddings=false)");
}

TEST_F(SetupTest, RefusesWhatVirtualRanksCannotCompute) {
  const auto refusal = [&](const auto& change) {
    auto in = inputs_;
    in.model.num_hidden_layers = 4;
    in.model.num_key_value_heads = 2;
    in.model.vocab_size = 258;
    in.train.global_batch = 16;
    in.train.reproducible = Reproducible::mesh;
    in.train.reproducible_tensor = 2;
    change(in);
    return test::error_of([&] { plan_setup(in, comm::planned_topology(4, 4, 0)); });
  };
  EXPECT_EQ(refusal([](Inputs& in) { in.train.reproducible = Reproducible::launch; }),
            "train.reproducible_tensor is 2, but train.reproducible is launch; set that to mesh");
  EXPECT_EQ(refusal([](Inputs& in) { in.train.reproducible_tensor = 3; }),
            "train.reproducible_tensor is 3, which is no power of two that mesh.axes.tensor 1 "
            "divides; use 1 or 2");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.mesh.tensor = 4;
              in.model.hidden_size = 32;
              in.model.num_attention_heads = 4;
            }),
            "train.reproducible_tensor is 2, which is no power of two that mesh.axes.tensor 4 "
            "divides; use 4 or 8");
  EXPECT_EQ(refusal([](Inputs& in) { in.model.vocab_size = 257; }),
            "train.reproducible_tensor is 2, which does not divide model.vocab_size 257; start 2 "
            "tensor ranks (mesh.axes.tensor=2)");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.mesh.pipeline = 2;
              in.tensor.residual = sharding::ResidualLayout::whole;
            }),
            "train.reproducible_tensor is 2, and pipeline stages send virtual ranks' rows, but "
            "tensor.residual is whole; use mesh.axes.pipeline=1");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.mesh.tensor = 2;
              in.train.reproducible_context = 2;
            }),
            "train.reproducible_tensor is 2 and train.reproducible_context 2, but gradients of "
            "virtual context ranks are first summed over tensor ranks, which must be virtual, too; "
            "use mesh.axes.tensor=1 in place of 2");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.train.reproducible_context = 2;
              in.data.sequence_length = 22;
            }),
            "data.sequence_length is 22, which 2 context ranks cannot divide into 4 equal pieces; "
            "use 20 or 24");
  EXPECT_EQ(refusal([](Inputs& in) {
              in.sharding.wrap = {sharding::Wrap::size, 1000};
            }),
            "train.reproducible is mesh, but sharding.wrap is size and separates "
            "model.layers.0.self_attn.k_proj.weight from model.layers.0.self_attn.q_proj.weight, "
            "which other meshes multiply together; raise sharding.min_numel, or use "
            "sharding.wrap=layer");
}

// Sequences are computed one at a time, whatever the micro-batch, and neighbors are summed first.
TEST_F(SetupTest, DividesSequencesSoThatTheirSumsAreOneTree) {
  inputs_.train.global_batch = 0;
  inputs_.train.micro_batch = 4;
  inputs_.train.reproducible = Reproducible::mesh;
  inputs_.mesh.replicate = 2;
  const auto planned = [&](sharding::Reduce reduce) {
    inputs_.sharding.reduce = reduce;
    return plan_setup(inputs_, comm::planned_topology(8, 4, 0));
  };
  const auto each = planned(sharding::Reduce::each);
  EXPECT_EQ(each.inputs.train.global_batch, 32);
  EXPECT_EQ(each.inputs.train.micro_batch, 1);
  EXPECT_EQ(each.micro_batches, 4);
  EXPECT_EQ(each.batch_partition(5).first_sequence(1), 16 + 4 + 1);
  EXPECT_EQ(planned(sharding::Reduce::last).batch_partition(5).first_sequence(1), 5 * 4 + 1);
}

TEST_F(SetupTest, RefusesMoreTokensThanCanBeNumbered) {
  inputs_.data.sequence_length = 1 << 20;
  inputs_.train.micro_batch = 1 << 11;
  inputs_.train.global_batch = 0;
  expect_error("train.micro_batch 2048 x data.sequence_length 1048576 are more than 2147483647");
}

TEST_F(SetupTest, CountsTheStepsOfEpochs) {
  // 10 sequences with 24 tokens, and the extra token for the last target.
  inputs_.data.train = {write("text.txt", std::string(241, 'x'))};
  inputs_.train.global_batch = 3;
  const auto steps = [&](double epochs) {
    inputs_.train.epochs = epochs;
    return make_setup(test::world(), inputs_).inputs.train.steps;
  };
  EXPECT_EQ(steps(3), 10);
  EXPECT_EQ(steps(1), 4) << "the last step goes on into the next epoch";
  EXPECT_EQ(steps(0.3), 1) << "0.3 x 10 is more than 3 in double";
  EXPECT_EQ(steps(0.01), 1);
  EXPECT_EQ(steps(0), 20) << "those of train.steps";
  inputs_.schedule.name = optim::ScheduleName::wsd;
  inputs_.schedule.decay_steps = 7;
  inputs_.train.epochs = 1;
  expect_error("4 warmup_steps and 7 decay_steps do not fit into 4 steps");
}

TEST_F(SetupTest, RefusesAScheduleLongerThanTheRun) {
  inputs_.schedule.name = optim::ScheduleName::wsd;
  inputs_.schedule.decay_steps = 17;  // out of 20 steps, 4 of which warm up
  expect_error(
      "4 warmup_steps and 17 decay_steps do not fit into 20 steps; lower them, or train the first "
      "part of a longer run with schedule.name=constant");
  inputs_.schedule.warmup_steps = inputs_.schedule.decay_steps =
      std::numeric_limits<std::int64_t>::max();
  expect_error("do not fit into 20 steps");
}

TEST_F(SetupTest, RefusesMomentsInBf16WithSgd) {
  inputs_.optimizer.name = optim::OptimizerName::sgd;
  inputs_.optimizer.moments = DType::bf16;
  expect_error("optimizer.moments is bf16, but optimizer.name sgd keeps its momentum in fp32");
}

TEST_F(SetupTest, RefusesMuonWithItsStateOnTheHost) {
  inputs_.optimizer.name = optim::OptimizerName::muon;
  inputs_.sharding.offload = sharding::Offload::optimizer;
  expect_error("optimizer.name muon multiplies matrices on the device, but sharding.offload");
}

TEST_F(SetupTest, RefusesMuonOnMatricesThatAreSplit) {
  if (test::world().size() % 2 != 0) GTEST_SKIP() << "no tensor axis";
  inputs_.optimizer.name = optim::OptimizerName::muon;
  inputs_.mesh.tensor = 2;
  inputs_.model.vocab_size = 258;
  inputs_.model.num_attention_heads = 4;
  inputs_.model.num_key_value_heads = 2;
  inputs_.model.head_dim = 8;
  expect_error(
      "optimizer.name muon needs whole matrices, but model.layers.0.self_attn.q_proj.weight is "
      "split along tensor among 2 ranks");
}

TEST_F(SetupTest, RefusesATextShorterThanASequence) {
  inputs_.data.train = {write("short.txt", std::string(24, 'x'))};
  expect_error("has 24 tokens, but one sequence needs 25");
  inputs_.data.train = {write("enough.txt", std::string(25, 'x'))};
  make_setup(test::world(), inputs_);
}

TEST_F(SetupTest, RefusesAVocabularyTooSmallForBytes) {
  inputs_.model.vocab_size = 255;
  expect_error("model.vocab_size is 255; set it to 256");
}

TEST_F(SetupTest, RefusesTheEndTimeOfAnEarlierJob) {
  setenv("LLAMESH_JOB_END_TIME", "1000", 1);
  expect_error("LLAMESH_JOB_END_TIME is 1000, a time before this launch; unset or renew it");
  setenv("LLAMESH_JOB_END_TIME", "tomorrow", 1);  // ignored with a warning
  make_setup(test::world(), inputs_);
  unsetenv("LLAMESH_JOB_END_TIME");
}

TEST_F(SetupTest, RefusesARunFolderThatIsAFile) {
  const auto text = inputs_.data.train.front();
  for (const auto& folder : {text, text + "/below/it", std::string("/dev/null")}) {
    inputs_.run.folder = folder;
    const auto error = test::error_of([&] { make_setup(test::world(), inputs_); });
    const auto file = folder == "/dev/null" ? folder : text;
    if (test::world().rank() > 0) continue;
    EXPECT_EQ(error.find(fmt::format("run.folder: '{}' is not a folder", file)), 0U) << error;
  }
}

TEST_F(SetupTest, RefusesAFileForNodeExporterThatCannotBeWritten) {
  inputs_.log.openmetrics = "/nowhere/x.prom";
  expect_error("log.openmetrics: '/nowhere/x.prom' cannot be written: No such file or directory");
  inputs_.log.openmetrics = inputs_.data.train.front() + "/x.prom";
  expect_error("cannot be written: Not a directory");
  const auto folder = std::filesystem::path(inputs_.data.train.front()).parent_path() / "d.prom";
  std::filesystem::create_directory(folder);
  inputs_.log.openmetrics = folder.string();
  expect_error("log.openmetrics: '" + folder.string() + "' is a folder");
  for (const auto& file : {inputs_.run.folder + "/x.prom", (folder / "x.prom").string()}) {
    inputs_.log.openmetrics = file;
    make_setup(test::world(), inputs_);
  }
}

TEST_F(SetupTest, RefusesAMissingFile) {
  inputs_.data.train = {"/nowhere/text.txt"};
  expect_error("'/nowhere/text.txt' cannot be opened");
}

/// As on a cluster where one node has not mounted the file system.
TEST_F(SetupTest, RefusesAFileThatOneRankMisses) {
  const int last = test::world().size() - 1;
  if (test::world().rank() == last) inputs_.data.train = {"/nowhere/text.txt"};
  expect_error("'/nowhere/text.txt' cannot be opened", last);
}

std::vector<std::int32_t> tokens_of(const data::TokenStream& stream) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
  return tokens;
}
/// Marks the tokens in the loss, and the document starts.
std::vector<std::int32_t> marks_of(const data::TokenStream& stream) {
  std::vector<std::int32_t> marks(static_cast<std::size_t>(stream.size()), 0);
  stream.mask_targets(0, marks);
  for (std::int64_t at = 1; (at = stream.next_document(at, stream.size())) < stream.size(); ++at)
    marks[static_cast<std::size_t>(at)] += 10;
  return marks;
}

TEST_F(SetupTest, RanksThatShareTokensSeeWhatOneAloneWouldMake) {
  const auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format("{{\"instruction\": \"count to {}\", \"output\": \"{}\"}}\n", i, i * i);
    return text;
  };
  inputs_.data.format = data::Format::jsonl;
  inputs_.data.document_mask = true;
  inputs_.data.train.clear();
  inputs_.data.sources = {{{write("a.jsonl", lines(7)), write("b.jsonl", lines(2))}},
                          {{write("c.jsonl", lines(5))}}};
  inputs_.data.validation = {write("d.jsonl", lines(3))};
  inputs_.evaluate.every_steps = 5;
  const auto setup = make_setup(test::world(), inputs_);
  const auto& options = setup.inputs.data;
  const std::int64_t vocab_size = setup.inputs.model.vocab_size;
  const data::TrainingData own(options, vocab_size);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(tokens_of(setup.train_tokens->stream(i)), tokens_of(own.stream(i)));
    EXPECT_EQ(marks_of(setup.train_tokens->stream(i)), marks_of(own.stream(i)));
  }
  EXPECT_EQ(to_text(setup.train_tokens->fingerprint(4)), to_text(own.fingerprint(4)));
  const data::TokenStream validation(options, options.validation, vocab_size);
  EXPECT_EQ(tokens_of(setup.validation_tokens.front()), tokens_of(validation));
  EXPECT_EQ(marks_of(setup.validation_tokens.front()), marks_of(validation));
}

TEST_F(SetupTest, OneRankOfAMachineTokenizes) {
  inputs_.data.format = data::Format::jsonl;
  const std::vector<std::string> files = {write("a.jsonl", "{\"text\": \"lamps of mesh\"}\n")};
  std::int64_t calls = 0;
  const auto tokens = tokenize_once(test::world(), [&] {
    ++calls;
    const auto tokenizer = data::open_fitting_tokenizer("byte", 256);
    return std::vector{data::TokenizedText(inputs_.data, files, 256, *tokenizer)};
  });
  EXPECT_EQ(test::world().sum(calls), 1);
  ASSERT_EQ(tokens.size(), 1U);
  EXPECT_EQ(tokens.front().ids().size(), 14);

  inputs_.data.train = {write("bad.jsonl", "{\"text\": 3}\n")};
  expect_error("line 1: 'text' must be a string");
}

TEST_F(SetupTest, RefusesToTrainOnNothing) {
  inputs_.data.train.clear();
  expect_error("data.train names no file");
}

TEST_F(SetupTest, RefusesAValidationWithoutData) {
  inputs_.evaluate.every_steps = 5;
  expect_error("evaluate.every_steps is 5, but data.validation names no file");
  inputs_.data.validation = {write("short.txt", "too short")};
  expect_error("short.txt' has 9 tokens, but one sequence needs 25");
  inputs_.data.validation = inputs_.data.train;
  EXPECT_EQ(make_setup(test::world(), inputs_).validation_tokens.size(), 1U);
}

TEST_F(SetupTest, RefusesDataWithoutATarget) {
  const auto write_conversations = [&](const char* name, const char* train) {
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += fmt::format(R"({{"messages": [{{"role": "user", "content": "Double {}"}}, )"
                           R"({{"role": "assistant", "content": "It is {}", "train": {}}}]}})"
                           "\n",
                           i, 2 * i, train);
    return write(name, lines);
  };
  inputs_.data.format = data::Format::jsonl;
  inputs_.data.train = {write_conversations("none.jsonl", "false")};
  expect_error("no token of the training data");
  inputs_.data.validation = inputs_.data.train;
  inputs_.data.train = {write_conversations("some.jsonl", "true")};
  EXPECT_TRUE(make_setup(test::world(), inputs_).validation_tokens.empty()) << "it is not used";
  inputs_.evaluate.every_steps = 5;
  expect_error("no token of the validation data");
}

TEST_F(SetupTest, RefusesAModelWhoseNumbersDoNotFit) {
  inputs_.model.num_key_value_heads = 4;
  expect_error("num_key_value_heads");
}

TEST_F(SetupTest, RefusesAMeshOfAnotherNumberOfRanks) {
  inputs_.mesh.shard = 2;
  inputs_.mesh.replicate = 2;
  expect_error(fmt::format("mesh replicate=2 x shard=2 needs 4 ranks, but there are {}",
                           test::world().size()));
}

TEST_F(SetupTest, RefusesNodesThatDoNotDivideTheMachine) {
  inputs_.mesh.ranks_per_node = 2;
  expect_error("cannot be cut into nodes of 2");
}

}  // namespace
}  // namespace llamesh::train
