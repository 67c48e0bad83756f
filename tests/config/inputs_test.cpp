#include "config/inputs.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

const std::string minimal = "data: {train: a.txt}\n";

TEST(Inputs, DefaultsAreThoseOfTheOptions) {
  const Inputs in = parse_inputs(minimal, "f");
  const Inputs defaults;
  EXPECT_EQ(in.run.folder, "runs/run");
  EXPECT_EQ(in.optimizer.lr, defaults.optimizer.lr);
  EXPECT_EQ(in.train.steps, defaults.train.steps);
  EXPECT_EQ(in.model.hidden_size, defaults.model.hidden_size);
  EXPECT_EQ(in.model.num_key_value_heads, defaults.model.num_attention_heads);  // resolved
  EXPECT_EQ(in.model.head_dim, 32);
  EXPECT_EQ(in.data.train, std::vector<std::string>{"a.txt"});
}

TEST(Inputs, ReadsEveryKindOfValue) {
  const Inputs in = parse_inputs(
      "run: {name: x, folder: /tmp/y z, seed: 7}\n"
      "model: {hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16,\n"
      "  rope_theta: 5e5, tie_word_embeddings: true,\n"
      "  rope_scaling: {rope_type: llama3, factor: 32, original_max_position_embeddings: 4096}}\n"
      "mesh: {axes: {replicate: auto, shard: 4, pipeline: 2}, ranks_per_node: 2}\n"
      "pipeline: {chunks: 2, layers: [3, 2, 2, 1]}\n"
      "sharding: {strategy: shard_grad_op, wrap: size, min_numel: 1e6, prefetch: 0,\n"
      "  reduce: last, prefetch_limit: 2e9, reshard_after_forward: 4, keep_bf16_weights: false}\n"
      "precision: {parameters: bf16, reduce: bf16}\n"
      "memory: {activation_checkpointing: selective, full_checkpointing_layers: 4}\n"
      "data: {train: [a.bin, b.bin], validation: c.bin, format: tokens, order: sequential,\n"
      "  token_dtype: uint32, sequence_length: +128}\n"
      "optimizer: {name: sgd, betas: [0, 0.5]}\n"
      "schedule: {name: wsd, decay_steps: 1.2e1}\n"
      "train: {threads: auto, global_batch: 48, on_nonfinite: skip}\n"
      "evaluate: {every_steps: 5}\n"
      "checkpoint: {every_minutes: 0.5, resume: none, async: true}\n",
      "f");
  EXPECT_EQ(in.run.folder, "/tmp/y z");
  EXPECT_EQ(in.run.seed, 7U);
  EXPECT_EQ(in.model.rope_theta, 5e5);
  ASSERT_TRUE(in.model.rope_scaling.has_value());
  EXPECT_EQ(in.model.rope_scaling->factor, 32);
  EXPECT_EQ(in.model.rope_scaling->high_freq_factor, 4);
  EXPECT_TRUE(in.model.tie_word_embeddings);
  EXPECT_EQ(in.mesh.replicate, 0);
  EXPECT_EQ(in.mesh.shard, 4);
  EXPECT_EQ(in.mesh.ranks_per_node, 2);
  EXPECT_EQ(in.mesh.pipeline, 2);
  EXPECT_EQ(in.pipeline.chunks, 2);
  EXPECT_EQ(in.pipeline.layers, (std::vector<std::int64_t>{3, 2, 2, 1}));
  EXPECT_EQ(in.sharding.strategy, sharding::Strategy::shard_grad_op);
  EXPECT_EQ(in.sharding.wrap.wrap, sharding::Wrap::size);
  EXPECT_EQ(in.sharding.wrap.min_numel, 1'000'000);
  EXPECT_EQ(in.sharding.prefetch, 0);
  EXPECT_EQ(in.sharding.prefetch_limit, 2'000'000'000);
  EXPECT_EQ(in.sharding.reduce, sharding::Reduce::last);
  EXPECT_EQ(in.sharding.reshard_after_forward, sharding::ReshardAfterForward{4});
  EXPECT_EQ(in.sharding.keep_bf16_weights, sharding::KeepBf16Weights::no);
  EXPECT_EQ(in.precision.parameters, DType::bf16);
  EXPECT_EQ(in.precision.reduce, DType::bf16);
  EXPECT_EQ(in.memory.activation_checkpointing, model::ActivationCheckpointing::selective);
  EXPECT_EQ(in.memory.full_checkpointing_layers, 4);  // all of them
  EXPECT_EQ(in.data.train, (std::vector<std::string>{"a.bin", "b.bin"}));
  EXPECT_EQ(in.data.validation, std::vector<std::string>{"c.bin"});
  EXPECT_EQ(in.data.format, data::Format::tokens);
  EXPECT_EQ(in.data.order, data::Order::sequential);
  EXPECT_EQ(in.data.token_dtype, data::TokenDtype::uint32);
  EXPECT_EQ(in.data.sequence_length, 128);
  EXPECT_EQ(in.optimizer.name, optim::OptimizerName::sgd);
  EXPECT_EQ(in.optimizer.beta1, 0);
  EXPECT_EQ(in.optimizer.beta2, 0.5);
  EXPECT_EQ(in.schedule.name, optim::ScheduleName::wsd);
  EXPECT_EQ(in.schedule.decay_steps, 12);
  EXPECT_EQ(in.train.threads, 0);
  EXPECT_EQ(in.train.on_nonfinite, train::OnNonfinite::skip);
  EXPECT_EQ(in.train.global_batch, 48);
  EXPECT_EQ(in.checkpoint.every_minutes, 0.5);
  EXPECT_EQ(in.checkpoint.resume, "none");
  EXPECT_TRUE(in.checkpoint.async);
  // Printed and read again it is the same, to the last digit and word.
  const Inputs again = parse_inputs(to_yaml(in), "printed");
  EXPECT_EQ(to_yaml(again), to_yaml(in));
  EXPECT_EQ(again.model.rope_scaling->original_max_position_embeddings, 4096);
  EXPECT_EQ(again.data.train, in.data.train);
  EXPECT_EQ(again.optimizer.beta2, in.optimizer.beta2);
  EXPECT_EQ(again.mesh.shard, 4);
  EXPECT_EQ(again.memory.full_checkpointing_layers, 4);
}

TEST(Inputs, ModelsMayHaveDenseLayersAmongSparseOnes) {
  const std::string sparse =
      minimal +
      "model: {family: qwen3_moe, num_experts: 4, num_experts_per_tok: 2, decoder_sparse_step: 2,\n"
      "  mlp_only_layers: [3], output_router_logits: true, router_aux_loss_coef: 0.02,\n"
      "  router_z_loss_coef: 1e-3}\n"
      "log: {experts: per_layer}\n";
  for (const auto& text : {sparse, to_yaml(parse_inputs(sparse, "f"))}) {
    const Inputs in = parse_inputs(text, "f");
    EXPECT_EQ(in.model.decoder_sparse_step, 2);
    EXPECT_EQ(in.model.mlp_only_layers, std::vector<std::int64_t>{3});
    EXPECT_TRUE(in.model.output_router_logits);
    EXPECT_EQ(in.model.router_aux_loss_coef, 0.02);
    EXPECT_EQ(in.model.router_z_loss_coef, 1e-3);
    EXPECT_EQ(in.log.experts, train::ExpertMetrics::per_layer);
  }
}

TEST(Inputs, ReshardAfterForwardIsAWordOrANumber) {
  using enum sharding::ReshardAfterForward;
  const auto read = [](const std::string& text) {
    return parse_inputs(text, "f").sharding.reshard_after_forward;
  };
  const auto check = [&](const char* word, sharding::ReshardAfterForward meaning) {
    const auto text = minimal + fmt::format("sharding: {{reshard_after_forward: {}}}\n", word);
    EXPECT_EQ(read(text), meaning) << word;
    EXPECT_EQ(read(to_yaml(parse_inputs(text, "f"))), meaning) << word;
  };
  EXPECT_EQ(read(minimal), by_strategy);
  check("auto", by_strategy);
  check("true", yes);
  check("false", no);
  check("8", sharding::ReshardAfterForward{8});
}

TEST(Inputs, DataMayHaveSources) {
  const std::string text =
      "data:\n  train:\n    - {files: [a, b c], weight: 0.1}\n    - files: d\n"
      "  format: tokens\n  document_mask: true\n  eos_token: 0\n";
  const Inputs in = parse_inputs(text, "f");
  const auto check = [](const Inputs& inputs) {
    EXPECT_TRUE(inputs.data.train.empty());
    ASSERT_EQ(inputs.data.sources.size(), 2U);
    EXPECT_EQ(inputs.data.sources[0].files, (std::vector<std::string>{"a", "b c"}));
    EXPECT_EQ(inputs.data.sources[0].weight, 0.1);
    EXPECT_EQ(inputs.data.sources[1].files, std::vector<std::string>{"d"});
    EXPECT_EQ(inputs.data.sources[1].weight, 1);
    EXPECT_TRUE(inputs.data.document_mask);
    EXPECT_EQ(inputs.data.eos_token, 0);
  };
  check(in);
  check(parse_inputs(to_yaml(in), "printed"));
  // On the command line, each form replaces the other.
  EXPECT_EQ(parse_inputs(text, "f", {"data.train=x"}).data.training_sources().size(), 1U);
  check(parse_inputs(minimal, "f",
                     {"data.train=[{files: [a, b c], weight: 0.1}, {files: d}]",
                      "data.format=tokens", "data.document_mask=true", "data.eos_token=0"}));
  for (const char* word : {"auto", "text", "jsonl", "tokens", "megatron", "random"})
    EXPECT_NE(to_yaml(parse_inputs(minimal, "f", {std::string("data.format=") + word}))
                  .find(std::string("format: ") + word),
              std::string::npos);
}

TEST(Inputs, ValidationMayHaveSets) {
  const auto in = parse_inputs(
      "data: {train: a}\n"
      "train: {early_stop: {patience: 3, min_delta: 0.01}}\n"
      "checkpoint: {keep_best: 2}\n"
      "evaluate: {every_steps: 5, files: {wiki: w.bin, code: [c.bin, d.bin]}, best_by: code}\n",
      "f.yaml", {"evaluate.files.wiki=x.bin"});
  ASSERT_EQ(in.evaluate.files.size(), 2U);
  EXPECT_EQ(in.evaluate.files[0].name, "wiki");
  EXPECT_EQ(in.evaluate.files[0].files, std::vector<std::string>{"x.bin"});
  EXPECT_EQ(in.evaluate.files[1].files, (std::vector<std::string>{"c.bin", "d.bin"}));
  EXPECT_EQ(in.deciding_set(), "code");
  EXPECT_EQ(in.train.early_stop.patience, 3);
  EXPECT_EQ(in.train.early_stop.min_delta, 0.01);
  EXPECT_EQ(in.checkpoint.keep_best, 2);
  const auto text = to_yaml(in);
  EXPECT_EQ(to_yaml(parse_inputs(text, "again")), text);
}

TEST(Inputs, PairsDecideAboutSequences) {
  const auto in = parse_inputs(
      "data: {train: a, columns: {chosen: good}}\ntrain: {objective: ipo, beta: 0.3}\n"
      "reference: {hf: base}\n",
      "there/f.yaml");
  EXPECT_EQ(in.train.objective, train::Objective::ipo);
  EXPECT_EQ(in.data.columns.chosen, "good");
  EXPECT_TRUE(in.data.pairs);
  EXPECT_TRUE(in.data.document_mask);
  EXPECT_EQ(in.data.packing, data::Packing::best_fit);
  EXPECT_EQ(in.reference.hf, (std::filesystem::current_path() / "there/base").string());
  const auto text = to_yaml(in);
  EXPECT_EQ(to_yaml(parse_inputs(text, "again")), text);
  EXPECT_EQ(
      parse_inputs("data: {train: a, packing: none}\ntrain: {objective: dpo}\n", "f").data.packing,
      data::Packing::none);
  EXPECT_NE(test::error_of([] {
              parse_inputs("data: {train: a}\ntrain: {beta: 0.3}\n", "f");
            }).find("train.beta is 0.3, but train.objective is next_token"),
            std::string::npos);
}

TEST(Inputs, RandomTokensNeedNoFile) {
  const Inputs in = parse_inputs("data: {format: random}", "f");
  EXPECT_EQ(in.data.training_sources().size(), 1U);
  EXPECT_EQ(parse_inputs(to_yaml(in), "printed").data.format, data::Format::random);
  EXPECT_EQ(parse_inputs("data: {train: [{files: a}, {files: b}]}", "f", {"data.format=random"})
                .data.training_sources()
                .size(),
            1U);
  EXPECT_NO_THROW(parse_inputs("data: {format: random}", "f",
                               {"evaluate.every_steps=5", "evaluate.batches=2"}));
}

TEST(Inputs, PrintedNumbersAreExact) {
  for (const double lr : {3e-4, 1.0 / 3, 1e-300, 123456789.123, 0.1 + 0.2}) {
    const Inputs in = parse_inputs(minimal, "f", {fmt::format("optimizer.lr={}", lr)});
    EXPECT_EQ(in.optimizer.lr, lr);
    EXPECT_EQ(parse_inputs(to_yaml(in), "printed").optimizer.lr, lr);
  }
  const Inputs big =
      parse_inputs(minimal, "f", {"train.steps=9007199254740993", "run.name='a b: c'"});
  EXPECT_EQ(big.train.steps, 9007199254740993);
  EXPECT_EQ(parse_inputs(to_yaml(big), "printed").train.steps, 9007199254740993);
}

TEST(Inputs, EpochsStandInPlaceOfSteps) {
  const auto read = [](const std::vector<std::string>& overrides) {
    const auto in = parse_inputs(minimal, "f", overrides);
    EXPECT_EQ(to_yaml(parse_inputs(to_yaml(in), "printed")), to_yaml(in));
    return std::pair(in.train.epochs, in.train.steps);
  };
  EXPECT_EQ(read({}), std::pair(0.0, std::int64_t{100}));
  EXPECT_EQ(read({"train.epochs=1.5"}), std::pair(1.5, std::int64_t{0}));
  EXPECT_EQ(read({"train.epochs=2", "train.steps=auto"}), std::pair(2.0, std::int64_t{0}));
  EXPECT_EQ(read({"train.epochs=0", "train.steps=7"}), std::pair(0.0, std::int64_t{7}));
  EXPECT_EQ(read({"train.steps=0"}), std::pair(0.0, std::int64_t{0}));
  EXPECT_EQ(test::error_of([&] {
              read({"train.epochs=2", "train.steps=7"});
            }),
            "command line: train.steps is 7 and train.epochs 2; give one of them (train.steps: "
            "auto leaves it "
            "to train.epochs)");
}

TEST(Inputs, OverridesWinOverTheFile) {
  const Inputs in =
      parse_inputs("train: {steps: 5, micro_batch: 2}\n" + minimal, "f",
                   {"train.steps=9", "data.train=[x, y]", "sharding.strategy=no_shard"});
  EXPECT_EQ(in.train.steps, 9);
  EXPECT_EQ(in.train.micro_batch, 2);
  EXPECT_EQ(in.data.train, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(in.sharding.strategy, sharding::Strategy::no_shard);
}

class ModelFile : public ::testing::Test {
 protected:
  ModelFile() {
    std::filesystem::create_directory(folder_.path("models"));
    folder_.write("models/m.yaml",
                  "hidden_size: 96\nnum_attention_heads: 6\nrope_scaling: {factor: 2}\n");
    folder_.write("run.yaml", "model: {file: models/m.yaml, num_attention_heads: 3}\n" + minimal);
  }
  std::string error(const std::string& name, const std::vector<std::string>& overrides = {}) const {
    return test::error_of([&] { load_inputs(folder_.path(name), overrides); });
  }
  test::TemporaryFolder folder_;
};

TEST_F(ModelFile, InlineKeysAndOverridesCountMore) {
  const Inputs in = load_inputs(folder_.path("run.yaml"), {"model.rope_scaling.factor=3"});
  EXPECT_EQ(in.model.hidden_size, 96);
  EXPECT_EQ(in.model.num_attention_heads, 3);
  EXPECT_EQ(in.model.rope_scaling->factor, 3);
  EXPECT_FALSE(
      load_inputs(folder_.path("run.yaml"), {"model.rope_scaling=null"}).model.rope_scaling);
  EXPECT_EQ(to_yaml(in).find("\n  file:"), std::string::npos);
  folder_.write("none.yaml", minimal);
  EXPECT_EQ(load_inputs(folder_.path("none.yaml"), {"model.file=" + folder_.path("models/m.yaml")})
                .model.hidden_size,
            96);
}

TEST_F(ModelFile, ErrorsNameTheFileThatIsWrong) {
  folder_.write("models/m.yaml", "hidden_size: 96\nhiden_size: 4\n");
  EXPECT_NE(
      error("run.yaml").find(folder_.path("models/m.yaml") + ":2: unknown key 'model.hiden_size'"),
      std::string::npos);
  folder_.write("models/m.yaml", "- a\n");
  EXPECT_NE(error("run.yaml").find("expected the keys of a model, got a list"), std::string::npos);
  folder_.write("models/m.yaml", "file: m.yaml\n");
  EXPECT_NE(error("run.yaml").find("cannot name another file"), std::string::npos);
  std::filesystem::remove(folder_.path("models/m.yaml"));
  EXPECT_NE(error("run.yaml").find("m.yaml' does not exist"), std::string::npos);
  EXPECT_NE(error("run.yaml", {"model.file=[a]"}).find("expected a path, got a list"),
            std::string::npos);
  EXPECT_NE(error("missing.yaml").find("missing.yaml' cannot be opened: No such file"),
            std::string::npos);
  EXPECT_NE(error("").find("is a folder"), std::string::npos);
}

TEST(Inputs, TheFilesOfTheRepositoryAreGood) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_file("inputs"))) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().string());
    std::vector<std::string> overrides;
    const auto name = entry.path().stem().string();
    if (name == "finetune-lora" || name == "preferences") {
      EXPECT_NE(test::error_of([&] {
                  load_inputs(entry.path().string(), {});
                }).find("model.lora has no model to adapt; set model.hf"),
                std::string::npos);
    }
    if (name == "continue" || name == "finetune-lora" || name == "preferences")
      overrides = {"model.file=" + test::source_file("inputs/models/llama-tiny.yaml")};
    const Inputs in = load_inputs(entry.path().string(), overrides);
    EXPECT_EQ(to_yaml(parse_inputs(to_yaml(in), "printed")), to_yaml(in));
    EXPECT_EQ(in.run.name, name);
    ++files;
  }
  EXPECT_GE(files, 3);
  for (const auto& entry : std::filesystem::directory_iterator(test::source_file("inputs/models")))
    EXPECT_NO_THROW(parse_inputs(minimal, "f", {"model.file=" + entry.path().string()}))
        << entry.path();
}

TEST(Changes, NameEachKeyWithBothValues) {
  const auto text = [](const std::vector<std::string>& overrides) {
    return to_yaml(parse_inputs(minimal, "f", overrides));
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(changes(text({}), text({})), Lines{});
  EXPECT_EQ(changes(text({"optimizer.lr=1e-3", "data.train=[a, b]"}),
                    text({"optimizer.lr=5e-4", "optimizer.betas=[0.9, 0.99]", "data.train=[a, c]",
                          "data.tokenizer=x"})),
            (Lines{"data.train [a, b] -> [a, c]", "data.tokenizer auto -> x",
                   "optimizer.lr 0.001 -> 0.0005", "optimizer.betas [0.9, 0.95] -> [0.9, 0.99]"}));
  EXPECT_EQ(changes(text({}), text({"model.rope_scaling={factor: 8}"})).at(0).substr(0, 41),
            "model.rope_scaling null -> {rope_type: ll");
}

TEST(Changes, LeaveOutWhatDoesNotAffectTheTraining) {
  const auto now =
      to_yaml(parse_inputs(minimal, "f", {"run.name=x", "checkpoint.keep=7", "log.every_steps=9"}));
  EXPECT_EQ(changes(to_yaml(parse_inputs(minimal, "f")), now), std::vector<std::string>{});
}

TEST(Changes, NameWhatIsAddedToAMapAndRemoved) {
  const auto text = [](const std::string& files) {
    return to_yaml(parse_inputs(minimal, "f", {"evaluate.files=" + files}));
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(changes(text("{a: x}"), text("{b: [y, z], a: w}")),
            (Lines{"evaluate.files.b added: [y, z]", "evaluate.files.a [x] -> [w]"}));
  EXPECT_EQ(changes(text("{a: x, b: y}"), text("{a: x}")), Lines{"evaluate.files.b removed: [y]"});
  EXPECT_EQ(changes(text("{}"), text("{a: x}")), Lines{"evaluate.files.a added: [x]"});
  EXPECT_EQ(changes(text("{a: x}"), text("{}")), Lines{"evaluate.files.a removed: [x]"});
}

TEST(Changes, AreNotWhatAnotherVersionOrProgramWrote) {
  const auto now = to_yaml(parse_inputs(minimal, "f", {"optimizer.lr=1"}));
  EXPECT_EQ(changes("optimizer: {eps: 1e-08, gone: 3}\n", now), std::vector<std::string>{});
  for (const char* other : {"", "text", "[1]", "a: [unclosed", "optimizer: 3\n---\n"})
    EXPECT_EQ(changes(other, now), std::vector<std::string>{}) << other;
}

/// data.train and data.validation may be patterns.
class Patterns : public testing::Test {
 protected:
  Patterns() {
    for (const char* name : {"b2.txt", "b10.txt", "a.txt", "c.md", ".b.txt", "[ab].txt", "p1.idx",
                             "p1.bin", "p2.idx", "q.bin"})
      folder_.write(name, "x");
  }
  /// Returns the files that `text` names, from the resolved inputs; $ stands for the folder.
  std::vector<std::string> files(std::string text) {
    for (std::size_t at = 0; (at = text.find('$', at)) != text.npos;)
      text.replace(at, 1, folder_.path().string());
    Inputs in = parse_inputs(text, "run.yaml");
    resolve_data(in, "run.yaml");
    const Inputs sent = parse_inputs(to_yaml(in), "resolved inputs");
    std::vector<std::string> names;
    const auto add = [&](const std::vector<std::string>& paths) {
      for (const auto& path : paths) names.push_back(std::filesystem::path(path).filename());
    };
    for (const auto& source : sent.data.training_sources()) add(source.files);
    add(sent.data.validation);
    return names;
  }
  using Names = std::vector<std::string>;
  const test::TemporaryFolder folder_;
};

TEST_F(Patterns, StandForTheSortedFilesThatMatch) {
  EXPECT_EQ(files("data: {train: $/b*.txt}"), (Names{"b10.txt", "b2.txt"}));
  EXPECT_EQ(files("data: {train: [$/c.md, '$/?.txt']}"), (Names{"c.md", "a.txt"}));
  EXPECT_EQ(
      files("data: {train: [{files: '$/b?.txt'}, {files: ['$/[a-c].*']}], validation: $/b*0*}"),
      (Names{"b2.txt", "a.txt", "c.md", "b10.txt"}));
}

TEST_F(Patterns, AFileOfThisNameIsThatFile) {
  EXPECT_EQ(files("data: {train: '$/[ab].txt'}"), Names{"[ab].txt"});
  EXPECT_EQ(files("data: {train: '$/*ab].txt'}"), Names{"[ab].txt"});
}

TEST_F(Patterns, OfMegatronPairsAreMatchedToTheirNames) {
  for (const char* pattern : {"$/*", "$/p?", "$/p*.bin", "$/p[12].idx"})
    EXPECT_EQ(files(std::string("data: {format: megatron, train: '") + pattern + "'}"),
              (Names{"p1", "p2"}))
        << pattern;
}

TEST_F(Patterns, MustMatchUnlessNoFileIsRead) {
  const auto error = [&](const std::string& text) { return test::error_of([&] { files(text); }); };
  EXPECT_NE(
      error("data: {train: [$/a.txt, $/x*.txt]}").find("run.yaml: data.train: no file matches '"),
      std::string::npos);
  EXPECT_NE(
      error("data: {train: $/a.txt, validation: '$/y?'}").find("data.validation: no file matches"),
      std::string::npos);
  EXPECT_NE(error("data: {train: $/no/*.txt}").find("/no cannot be read: No such file"),
            std::string::npos);
  EXPECT_EQ(files("data: {train: $/x*.txt, format: random}"), Names{});
  std::string many = "data: {train: [";
  for (int i = 0; i < 9001; ++i) many += "$/a.*, ";
  EXPECT_NE(error(many + "]}").find("data.train: 9001 data files with names of"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::config
