#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "python.hpp"
#include "runs/whole_run.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "train/run/resume.hpp"

// Runs that continue after somebody has changed their training data.

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;

void on_rank_0(const std::function<void()>& work) {
  if (world().rank() == 0) work();
  world().barrier();
}

/// Reads the file on rank 0: a slow rank must not find another rank's later write.
std::string text_of(const fs::path& path) {
  return world().broadcast(world().rank() == 0 ? read_file(path, 1 << 20) : "");
}

void replace(const fs::path& path, const std::string& text) {
  on_rank_0([&] { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; });
}

std::string conversations() {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format(R"({{"messages": [{{"role": "user", "content": "Double {}"}}, )"
                         R"({{"role": "assistant", "content": "It is {}"}}]}})"
                         "\n",
                         i, 2 * i);
  return lines;
}

class ChangedData : public testing::Test {
 protected:
  ChangedData() {
    in_.train.steps = 2;
    in_.checkpoint.every_steps = 0;
  }
  fs::path text() const { return folder_.path() / "text.txt"; }

  /// Checks that the run continues: its last checkpoint is at this step.
  void expect_goes_on(std::int64_t step) {
    in_.train.steps = step;
    run_to_the_end(in_);
    EXPECT_TRUE(fs::exists(checkpoint_of(in_, step == 3 ? "03" : "04") + "/manifest.json"));
  }
  /// Checks that a run with these inputs would be refused. (In this process only a run that ends
  /// well can be tested; tests/faults covers the others.)
  void expect_refused(const std::vector<std::string>& parts) const {
    const fs::path checkpoint = checkpoint_of(in_, "02");
    const auto saved = checkpoint::parse_manifest(text_of(checkpoint / "manifest.json")).progress;
    const auto refusal = [&](std::int64_t step) {
      return error_of([&] {
        train::check_data(saved, data_of_run(), train::OwnRun{checkpoint.parent_path(), step});
      });
    };
    const auto text = refusal(saved.step);
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("checkpoint.resume=" + checkpoint.string()), std::string::npos) << text;
    const auto in_memory = refusal(-1);
    EXPECT_NE(in_memory.find("only in the nodes' memory"), std::string::npos) << in_memory;
    EXPECT_EQ(in_memory.find("checkpoint.resume="), std::string::npos) << in_memory;
    world().barrier();
  }

  train::DataOfRun data_of_run() const {
    const auto setup = plan::make_planned_setup(world(), in_);
    return {in_.run.seed,
            data::to_text(setup.train_tokens->fingerprint(setup.inputs.train.global_batch))};
  }

  SharedFolder folder_;
  train::Inputs in_ = inputs_in(folder_.path());
};

TEST_F(ChangedData, IsNoticedByOneByteAndByWhatIsAppended) {
  run_to_the_end(in_);
  const std::string before = text_of(text());
  auto edited = before;
  edited[edited.size() / 2] ^= 1;
  replace(text(), edited);
  const auto size = std::to_string(before.size());
  expect_refused({"have changed since step 2", "text.txt' has " + size + " tokens",
                  "text.txt' had " + size, "checkpoint.resume=" + checkpoint_of(in_, "02")});
  replace(text(), before + "One more line.\n");
  expect_refused({"' has " + std::to_string(before.size() + 15) + " tokens", "' had " + size});
  replace(text(), before);
  expect_goes_on(3);
}

TEST_F(ChangedData, IsGoneOnWithUnderAnotherName) {
  run_to_the_end(in_);
  replace(text(), text_of(text()) + "One more line.\n");
  in_.checkpoint.resume = checkpoint_of(in_, "02");
  in_.run.folder += "-on";
  expect_goes_on(3);  // this run now uses the data's new form
  expect_goes_on(4);
}

TEST_F(ChangedData, IsNoticedByTheTokenizer) {
  const auto tokenizer = folder_.path() / "tokenizer.json";
  const auto take = [&](const char* name) {
    replace(tokenizer, text_of(test::source_file("tests/tokenizer/golden/") + name));
  };
  take("gpt2.json");
  in_.data.tokenizer = tokenizer.string();
  in_.model.vocab_size = 1000;
  run_to_the_end(in_);
  take("llama2.json");
  expect_refused({"the tokenizer '" + tokenizer.string() + "' has other tokens"});
  take("gpt2.json");
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNoticedByTheirOrder) {
  in_.data.sources = {{in_.data.train, 1.0}};
  in_.data.train.clear();
  run_to_the_end(in_);
  const auto before = in_;
  in_.data.sequence_length = 12;
  in_.train.global_batch = 24;  // equally many tokens per step
  expect_refused({"have changed since step 2", "data.sequence_length is 12; it was 24"});
  in_ = before;
  in_.train.global_batch = 24;
  expect_refused({"train.global_batch is 24; it was 12"});
  in_ = before;
  in_.data.order = data::Order::sequential;
  expect_refused({"data.order is sequential; it was shuffled"});
  in_ = before;
  in_.data.sources[0].weight = 1.5;
  expect_refused({"the weight of source 1 is 1.5; it was 1"});
  in_ = before;
  in_.run.seed = 2;
  expect_refused({"run.seed is 2; it was 1"});
  in_ = before;
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNotWhatCountsInTheLoss) {
  // Prompts, and the first token of each document, are seen but not learned.
  in_.data.format = data::Format::jsonl;
  in_.data.document_mask = true;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        fmt::format("{{\"instruction\": \"Double {}\", \"output\": \"It is {}\"}}\n", i, 2 * i);
  replace(text(), lines);
  run_to_the_end(in_);
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNoticedByTheChatTemplate) {
  in_.data.format = data::Format::jsonl;
  in_.data.tokenizer =
      test::source_file("tests/tokenizer/golden/qwen.json");  // a folder without a template
  in_.model.vocab_size = 1000;
  replace(text(), conversations());
  run_to_the_end(in_);
  const auto before = in_;
  in_.data.chat_template = data::ChatTemplate::chatml;
  expect_refused(
      {"have changed since step 2: data.chat_template is chatml; it was plain; set "
       "data.chat_template=plain to continue"});
  in_ = before;
  in_.data.loss_on = data::LossOn::all;
  expect_refused({"data.loss_on is all; it was assistant; set data.loss_on=assistant to continue"});
  in_ = before;
  in_.data.chat_template = data::ChatTemplate::plain;
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNoticedByTheFoldersOwnTemplate) {
  if (!has_jinja()) GTEST_SKIP() << "python3 has no jinja2";
  const std::string jinja =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}";
  on_rank_0([&] {
    fs::copy_file(source_file("tests/tokenizer/golden/qwen.json"),
                  folder_.path() / "tokenizer.json");
  });
  replace(folder_.path() / "chat_template.jinja", jinja);
  in_.data.format = data::Format::jsonl;
  in_.data.tokenizer = (folder_.path() / "tokenizer.json").string();
  in_.model.vocab_size = 1000;
  replace(text(), conversations());
  run_to_the_end(in_);
  EXPECT_EQ(text_of(fs::path(in_.run.folder) / "chat_template.jinja"), jinja);
  replace(folder_.path() / "chat_template.jinja", "Talk: " + jinja);
  expect_refused(
      {"have changed since step 2: the chat template in the tokenizer's folder has hash "});
  replace(folder_.path() / "chat_template.jinja", "{#- the same text #}" + jinja);
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNotWhatHasMoved) {
  run_to_the_end(in_);
  const auto elsewhere = folder_.path() / "elsewhere";
  on_rank_0([&] {
    fs::create_directory(elsewhere);
    fs::rename(text(), elsewhere / "book.txt");
    fs::rename(in_.run.folder, elsewhere / "run");
  });
  in_.data.train = {(elsewhere / "book.txt").string()};
  in_.run.folder = (elsewhere / "run").string();
  expect_goes_on(3);
}

TEST_F(ChangedData, IsNotAskedForByACheckpointThatDoesNotKnow) {
  run_to_the_end(in_);
  on_rank_0([&] {
    // As written by versions without it: no key.
    const auto path = checkpoint_of(in_, "02") + "/manifest.json";
    auto body = nlohmann::json::parse(read_file(path, 1 << 20));
    body.erase("checksum");
    EXPECT_EQ(body.at("progress").erase("data"), 1U);
    const auto rest = body.dump().substr(1) + "\n";
    std::ofstream(path) << fmt::format("{{\"checksum\": \"{:016x}\",\n",
                                       hash_of(rest.data(), rest.size()))
                        << rest;
  });
  replace(text(), text_of(text()) + "One more line.\n");
  expect_goes_on(3);
}

}  // namespace
}  // namespace llamesh::test
