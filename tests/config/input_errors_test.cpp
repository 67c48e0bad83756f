#include <gtest/gtest.h>

#include "config/inputs.hpp"
#include "core/text.hpp"
#include "support.hpp"

namespace llamesh::config {
namespace {

std::string error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return test::error_of([&] { parse_inputs(text, "f.yaml", overrides); });
}
const std::string data = "data: {train: a.txt}\n";

TEST(InputErrors, UnknownKeysNameTheNearest) {
  EXPECT_EQ(error(data + "modle:\n  hidden_sise: 4\n"),
            "f.yaml:3: unknown key 'modle.hidden_sise'; did you mean 'model.hidden_size'?");
  EXPECT_EQ(
      error(data + "train:\n  steps: 3\n  lr: 0.1\n"),
      "f.yaml:4: unknown key 'train.lr'; did you mean 'optimizer.lr' or 'optimizer.muon.lr' or "
      "'optimizer.outer.lr'?");
  EXPECT_EQ(error(data + "mesh: {axes: {banana: 2}}\n"),
            "f.yaml:2: unknown key 'mesh.axes.banana'");
  EXPECT_EQ(error(data + "xyzzyplugh: 4\n"), "f.yaml:2: unknown key 'xyzzyplugh'");
  EXPECT_EQ(error(data, {"train.stepz=4"}),
            "command line: unknown key 'train.stepz'; did you mean 'train.steps'?");
  EXPECT_EQ(error(data + "train.steps: 4\n"),
            "f.yaml:2: key 'train.steps' is written with dots; nest it: train: {steps: ...}");
  EXPECT_EQ(error(data + "model: {rope_scaling: {facter: 2}}\n"),
            "f.yaml:2: unknown key 'model.rope_scaling.facter'; did you mean "
            "'model.rope_scaling.factor'?");
}

TEST(InputErrors, AKeyWithoutItsGroupNamesThoseThatHaveIt) {
  EXPECT_EQ(error(data, {"lr=1"}),
            "command line: unknown key 'lr'; did you mean 'optimizer.lr' or 'optimizer.muon.lr' or "
            "'optimizer.outer.lr'?");
  EXPECT_EQ(error(data, {"stpes=1"}),
            "command line: unknown key 'stpes'; did you mean 'profile.steps' or 'train.steps'?");
  EXPECT_EQ(error(data, {"every_steps=1"}),
            "command line: unknown key 'every_steps'; did you mean 'checkpoint.every_steps' or "
            "'checkpoint.memory.every_steps' or 'evaluate.every_steps' or 'log.every_steps' or "
            "'optimizer.outer.every_steps'?");
}

TEST(InputErrors, NamesOfOtherProgramsHaveTheirHint) {
  const auto hint = [](const std::string& override_text) {
    const auto text = error(data, {override_text});
    return text.substr(std::min(text.rfind("; "), text.size()));
  };
  EXPECT_EQ(hint("learning_rate=1"), "; did you mean 'optimizer.lr'?");
  EXPECT_EQ(hint("optimizer.learning_rate=1"), "; did you mean 'optimizer.lr'?");
  EXPECT_EQ(hint("data.path=a"), "; did you mean 'data.train'?");
  EXPECT_EQ(hint("train.warmup=9"), "; did you mean 'schedule.warmup_steps'?");
  EXPECT_NE(error(data, {"precision=bf16"}).find("did you mean 'precision.parameters'?"),
            std::string::npos);
  EXPECT_EQ(hint("out_dir=a"), "; did you mean 'run.folder'?");
  EXPECT_EQ(hint("max_steps=1"), "; did you mean 'train.steps'?");
  EXPECT_EQ(hint("train.batch_size=1"),
            "; did you mean 'train.micro_batch' (of a rank) or 'train.global_batch' (of a step)?");
  EXPECT_EQ(
      hint("gradient_accumulation_steps=4"),
      "; set 'train.global_batch' to ranks x 'train.micro_batch' x accumulated micro-batches");
  EXPECT_EQ(hint("model.lora.r=8"), "; did you mean 'model.lora.rank'?");
  EXPECT_EQ(hint("model.lora.lora_alpha=16"), "; did you mean 'model.lora.alpha'?");
  EXPECT_EQ(hint("model.lora.target_modules=[q_proj]"), "; did you mean 'model.lora.targets'?");
  EXPECT_EQ(hint("mesh.axes.fsdp=2"), "; did you mean 'mesh.axes.shard'?");
  EXPECT_EQ(hint("warmup_ratio=0.1"), "; did you mean 'schedule.warmup_steps', a number of steps?");
  EXPECT_EQ(hint("tp_size=2"), "; did you mean 'mesh.axes.tensor'?");
  EXPECT_EQ(hint("report_to=wandb"), "; did you mean 'log.tensorboard'?");
  EXPECT_NE(hint("mesh.axes.pp=2").find("'mesh.axes.pipeline'"), std::string::npos);
  EXPECT_NE(hint("train.dpo_beta=0.1").find("train.beta"), std::string::npos);
  EXPECT_NE(hint("model.load_in_4bit=true").find("model.lora.base: nf4"), std::string::npos);
  EXPECT_EQ(hint("sharding.strategy=fsdp"), "; did you mean 'full_shard'?");
  EXPECT_EQ(hint("precision.parameters=bfloat16"), "; did you mean 'bf16'?");
  EXPECT_EQ(hint("memory.activation_checkpointing=fsdp"), "; allowed: none, selective, full");
}

TEST(InputErrors, AGroupIsNotResetOnTheCommandLine) {
  EXPECT_EQ(error(data, {"mesh=null"}),
            "command line: mesh=null would reset all keys of the group mesh; set its keys one "
            "by one");
  EXPECT_EQ(error(data, {"optimizer.muon="}),
            "command line: optimizer.muon=null would reset all keys of the group optimizer.muon; "
            "set its keys one by one");
}

TEST(InputErrors, DuplicateKeys) {
  EXPECT_EQ(error(data + "train: {steps: 3}\ntrain: {steps: 4}\n"),
            "f.yaml:3: duplicate key 'train'; it is already at f.yaml:2");
}

TEST(InputErrors, WrongTypes) {
  EXPECT_EQ(error(data + "train: {steps: abc}\n"),
            "f.yaml:2: train.steps: expected an integer or auto, got 'abc'");
  EXPECT_EQ(error(data, {"train.steps=1.5"}),
            "command line: train.steps: expected an integer or auto, got '1.5'");
  EXPECT_EQ(error(data, {"train.steps="}),
            "command line: train.steps: expected an integer or auto, got nothing");
  EXPECT_EQ(error(data, {"train.steps=[1]"}),
            "command line: train.steps: expected an integer or auto, got a list");
  EXPECT_EQ(error(data, {"train.steps=1e400"}),
            "command line: train.steps: expected an integer or auto, got '1e400'");
  EXPECT_EQ(error(data, {"train=5"}), "command line: train: expected a group of keys, got '5'");
  EXPECT_EQ(error(data, {"optimizer.lr=fast"}),
            "command line: optimizer.lr: expected a number, got 'fast'");
  EXPECT_EQ(error(data, {"optimizer.lr=nan"}),
            "command line: optimizer.lr: expected a number, got 'nan'");
  EXPECT_EQ(error(data, {"optimizer.betas=[0.9]"}),
            "command line: optimizer.betas: expected a list of two numbers, got 1");
  EXPECT_EQ(error(data, {"optimizer.betas=0.9"}),
            "command line: optimizer.betas: expected a list of two numbers, got '0.9'");
  EXPECT_EQ(error(data, {"checkpoint.async=yes"}),
            "command line: checkpoint.async: expected true or false, got 'yes'");
  EXPECT_EQ(error(data, {"run.name={a: 1}"}),
            "command line: run.name: expected a word, got a group of keys");
  EXPECT_EQ(error(data, {"data.train={a: 1}"}),
            "command line: data.train: expected a list of words, got a group of keys");
  EXPECT_EQ(error(data, {"data.train=[a, [b]]"}),
            "command line: data.train: expected a list of words, but it contains a list");
  EXPECT_EQ(error(data, {"model.mlp_only_layers=3"}),
            "command line: model.mlp_only_layers: expected a list of integers, got '3'");
  EXPECT_EQ(
      error(data, {"model.mlp_only_layers=[3, x]"}),
      "command line: model.mlp_only_layers: expected a list of integers, but it contains 'x'");
  EXPECT_EQ(error(data, {"mesh.axes.shard=many"}),
            "command line: mesh.axes.shard: expected an integer or auto, got 'many'");
  EXPECT_EQ(error("- a\n"), "f.yaml:1: expected groups of keys, got a list");
}

TEST(InputErrors, UnknownWords) {
  EXPECT_EQ(error(data, {"sharding.strategy=hybrid_shrad"}),
            "command line: sharding.strategy: unknown value 'hybrid_shrad'; allowed: full_shard, "
            "shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2; did you mean "
            "'hybrid_shard'?");
  EXPECT_NE(error(data, {"sharding.strategy=FULL_SHARD"}).find("; did you mean 'full_shard'?"),
            std::string::npos);
  EXPECT_EQ(error(data, {"precision.reduce=q"}),
            "command line: precision.reduce: unknown value 'q'; allowed: fp32, bf16");
  EXPECT_NE(error(data, {"model.rope_scaling.rope_type=su"}).find("allowed: dynamic, llama3"),
            std::string::npos);
}

TEST(InputErrors, Ranges) {
  const auto range = [](const std::string& key, const std::string& value,
                        const std::string& allowed) {
    EXPECT_EQ(error(data, {key + "=" + value}),
              "command line: " + key + ": " + value + " is out of range; allowed: " + allowed);
  };
  range("train.steps", "-1", ">= 0");
  range("train.micro_batch", "0", "[1, 16777216]");
  range("data.sequence_length", "0", "[1, 16777216]");
  range("train.global_batch", "1000000000000", "[0, 16777216]");
  range("train.threads", "100000", "[0, 4096]");
  range("optimizer.lr", "0", "> 0");
  EXPECT_EQ(error(data, {"optimizer.betas=[0.9, 1]"}),
            "command line: optimizer.betas: 1 is out of range; allowed: [0, 1)");
  range("schedule.min_lr_ratio", "1.5", "[0, 1]");
  range("sharding.prefetch", "5", "[0, 4]");
  range("sharding.prefetch", "-1", "[0, 4]");
  EXPECT_EQ(error(data, {"sharding.prefetch_limit=-1"}),
            "command line: sharding.prefetch_limit: expected a number of bytes or a size such as "
            "80GB or 512MiB, got '-1'");
  range("sharding.reshard_after_forward", "0", ">= 1");
  range("mesh.axes.pipeline", "0", ">= 1");
  EXPECT_EQ(error(data, {"pipeline.layers=[4, 0]"}),
            "command line: pipeline.layers: 0 is out of range; allowed: >= 1");
  EXPECT_EQ(error(data, {"sharding.reshard_after_forward=yes"}),
            "command line: sharding.reshard_after_forward: expected auto, true, false or a number "
            "of ranks, got 'yes'");
  range("memory.full_checkpointing_layers", "-1", ">= 0");
  EXPECT_EQ(
      error(data, {"memory.full_checkpointing_layers=3", "model.num_hidden_layers=2"}),
      "command line: memory.full_checkpointing_layers is 3, but the model has 2 layers; set it to "
      "at most that");
  range("checkpoint.keep", "0", ">= 1");
  range("mesh.axes.shard", "-2", ">= 0");
  range("run.seed", "-1", ">= 0");
  EXPECT_EQ(error(data, {"mesh.axes.shard=3000000000"}),
            "command line: mesh.axes.shard: 3000000000 is too large; at most 2147483647");
}

TEST(InputErrors, SourcesOfData) {
  EXPECT_EQ(error("data:\n  train:\n    - {files: a, weight: 1}\n    - {fils: b}\n"),
            "f.yaml:4: unknown key 'data.train[1].fils'; did you mean 'data.train[1].files'?");
  EXPECT_EQ(error("data:\n  train:\n    - {files: a}\n    - b\n"),
            "f.yaml:4: data.train: expected only groups of keys in the list, got 'b'");
  EXPECT_EQ(error("data: {train: [{files: a, weight: 0}]}"),
            "f.yaml:1: data.train[0].weight: 0 is out of range; allowed: (0, 1000000]");
  EXPECT_EQ(error("data: {train: [{files: a}, {weight: 2}]}"),
            "f.yaml: data.train[1].files is missing; name at least one file");
  EXPECT_EQ(error("data: {train: [{files: {a: b}}]}"),
            "f.yaml:1: data.train[0].files: expected a list of words, got a group of keys");
  for (const char* format : {"data.format=tokens", "data.format=random"})
    EXPECT_NE(error(data, {format, "data.document_mask=true"}).find("data.eos_token"),
              std::string::npos);
  EXPECT_NE(error(data, {"data.format=random", "train.epochs=2", "train.steps=auto"})
                .find("random tokens are unlimited; set train.steps instead"),
            std::string::npos);
  EXPECT_NE(error(data, {"data.format=random", "evaluate.every_steps=1"})
                .find("random tokens are unlimited; set it to a number of sequences"),
            std::string::npos);
}

TEST(InputErrors, WhatDoesNotFitTogether) {
  EXPECT_EQ(error(""), "f.yaml: data.train is missing; name at least one file");
  EXPECT_NE(error(data, {"evaluate.every_steps=5"}).find("data.validation is missing"),
            std::string::npos);
  EXPECT_EQ(error(data, {"train.early_stop.patience=3"}),
            "command line: train.early_stop.patience is 3, but evaluate.every_steps is 0, so there "
            "are no validation losses; set evaluate.every_steps");
  EXPECT_NE(error(data, {"checkpoint.keep_best=2"}).find("checkpoint.keep_best is 2, but evaluate"),
            std::string::npos);
  EXPECT_EQ(
      error("data: {train: a}\nevaluate: {files: {'a b': c}}"),
      "f.yaml: evaluate.files: 'a b' is not a valid name for a validation set; use up to 64 of the "
      "characters a-z, A-Z, 0-9, '-', '_' and '.'");
  EXPECT_NE(error("data: {train: a}\nevaluate: {files: {validation: c}}")
                .find("the name 'validation' is reserved for data.validation"),
            std::string::npos);
  EXPECT_NE(error("data: {train: a}\nevaluate: {files: {b: []}}").find("set 'b' has no files"),
            std::string::npos);
  EXPECT_EQ(error("data: {train: a}\nevaluate: {files: [b]}"),
            "f.yaml:2: evaluate.files: expected names with their files, as {NAME: FILES}, got a "
            "list");
  EXPECT_EQ(error("data: {train: a}\nevaluate: {files: {b: {c: d}}}"),
            "f.yaml:2: evaluate.files.b: expected a list of words, got a group of keys");
  EXPECT_NE(error("data: {train: a, validation: v}\nevaluate: {files: {b: c}, best_by: d}")
                .find("evaluate.best_by is 'd', which is not a validation set; choose one of: "
                      "validation, b"),
            std::string::npos);
  for (const std::string name : {"a/b", "..", "''"})
    EXPECT_NE(error(data, {"run.name=" + name}).find("is not a valid folder name"),
              std::string::npos)
        << name;
  EXPECT_NE(error(data, {"model.num_attention_heads=8", "model.num_key_value_heads=3"})
                .find("num_key_value_heads"),
            std::string::npos);
}

TEST(Nearest, FindsOnlyWhatIsNear) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(nearest("stpes", {"steps", "keep"}), Words{"steps"});
  EXPECT_EQ(nearest("STEPS", {"steps", "keep"}), Words{"steps"});
  EXPECT_EQ(nearest("zzzzz", {"steps", "keep"}), Words{});
  EXPECT_EQ(nearest(std::string(1'000'000, 'a'), {"steps"}), Words{});
}

TEST(InputErrors, TextThatIsNotUtf8) {
  EXPECT_EQ(parse_inputs(data, "f.yaml", {"run.name=caf\xc3\xa9"}).run.name, "caf\xc3\xa9");
  for (const std::string key :
       {"run.name", "run.folder", "data.train", "data.validation", "data.tokenizer",
        "evaluate.files.set", "log.openmetrics", "checkpoint.resume", "train.freeze"})
    EXPECT_EQ(
        error(data, {key + "=caf\xe9"}),
        "command line: " + key + ": 'caf\xef\xbf\xbd' is not UTF-8 (byte 3); use a name in UTF-8");
  EXPECT_EQ(
      error("data:\n  train:\n    - a.txt\n    - b\xff.txt\n").find("f.yaml:4: data.train: 'b"),
      0U);
}

TEST(InputErrors, NamesOfMoreThanOneLine) {
  for (const std::string bad : {"a\\nb", "a\\rb", "\\e[2J", "a\\x7fb"})
    for (const char* key : {"name", "folder"}) {
      const auto text = error(fmt::format("{}run: {{{}: \"{}\"}}\n", data, key, bad));
      EXPECT_NE(text.find(fmt::format("run.{}", key)), std::string::npos) << text;
      EXPECT_NE(text.find("control character"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace llamesh::config
