#include "app/models/origin.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace llamesh::app
