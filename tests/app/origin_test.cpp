#include "app/models/origin.hpp"

#include <gtest/gtest.h>

#include "core/hash.hpp"
#include "data/chat_template.hpp"
#include "data/fingerprint.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

TEST(Origin, OfAnOldRunHasPlainConversations) {
  const auto old = origin_of("data: {format: jsonl, tokenizer: folder}\n").data;
  EXPECT_EQ(old.chat_template, data::ChatTemplate::plain);
  EXPECT_EQ(old.loss_on, data::LossOn::assistant);
  EXPECT_EQ(old.tokenizer, "folder");
}

TEST(Origin, OfAnImportedFolderHasItsConversations) {
  const auto origin = origin_of("model:\n  hf: /models/chat\n");
  EXPECT_EQ(origin.hf, "/models/chat");
  EXPECT_EQ(origin.data.chat_template, data::ChatTemplate::automatic);
}

TEST(Origin, KeepsHowConversationsWereWritten) {
  const auto origin = [](const std::string& chat_template, const std::string& loss_on) {
    return origin_of("data: {chat_template: " + chat_template + ", loss_on: " + loss_on + "}").data;
  };
  EXPECT_EQ(origin("auto", "all").chat_template, data::ChatTemplate::automatic);
  EXPECT_EQ(origin("auto", "all").loss_on, data::LossOn::all);
  EXPECT_EQ(origin("chatml", "last_assistant").chat_template, data::ChatTemplate::chatml);
  EXPECT_EQ(origin("chatml", "last_assistant").loss_on, data::LossOn::last_assistant);
  const auto reasoning = [](const std::string& data) { return origin_of(data).data.reasoning; };
  EXPECT_EQ(reasoning("data: {reasoning: drop}"), data::Reasoning::drop);
  EXPECT_EQ(reasoning("data: {}"), data::Reasoning::refuse);
  const auto columns = origin_of("data: {columns: {prompt: question, text: ''}}").data.columns;
  EXPECT_EQ(columns, (data::RecordColumns{.prompt = "question"}));
  EXPECT_EQ(origin_of("data: {}").data.columns, data::RecordColumns{});
}

/// A run's checkpoint that read conversations with this template.
Origin origin_with(const test::TemporaryFolder& run, const std::string& chat_template) {
  data::Fingerprint fingerprint{"t", 1, {{{"f", 10, 1}}}, data::DataOrder{}};
  fingerprint.data_order->sequence_length = fingerprint.data_order->global_batch = 1;
  fingerprint.data_order->weights = {1};
  fingerprint.data_order->chat_template = chat_template;
  checkpoint::TrainState progress;
  progress.config = "data: {format: jsonl, chat_template: auto, tokenizer: " +
                    test::source_file("tests/tokenizer/golden/qwen.json") + "}\n";
  progress.data = data::to_text(fingerprint);
  return origin_of(run.path("checkpoints/step_00000004"), progress);
}

TEST(Origin, HasTheTemplateThatTheRunWasTrainedWith) {
  const std::string text = "{{ messages[0].content }}";
  const test::TemporaryFolder run;
  const auto jinja = "jinja:" + to_hex(hash_of(text.data(), text.size()));
  EXPECT_EQ(origin_with(run, "chatml").data.chat_template, data::ChatTemplate::chatml);
  const auto data = origin_with(run, jinja).data;
  EXPECT_EQ(data.chat_template, data::ChatTemplate::jinja);
  const auto error = test::error_of([&] { data::jinja_template_of(data); });
  EXPECT_NE(error.find("is neither in " + run.path("chat_template.jinja") + " nor beside"),
            std::string::npos)
      << error;
  run.write("chat_template.jinja", text + "edited");
  EXPECT_EQ(test::error_of([&] { data::jinja_template_of(data); }), error);
  run.write("chat_template.jinja", text);
  const auto found = data::jinja_template_of(data);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, text);
  EXPECT_EQ(data::name_with_hash(data), jinja);
}

}  // namespace
}  // namespace llamesh::app
