#include "data/record_fields.hpp"

#include <gtest/gtest.h>

#include "data/chat_template.hpp"
#include "data/encode_jsonl.hpp"
#include "files.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

const std::string turns_file = "t.jsonl";
const LineNumber turns_line{turns_file, 9};

/// Returns a conversation whose first answer, b, has `field`, a JSON member, beside its content.
std::string with_field(const std::string& field) {
  return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )" +
         field + R"(}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
}

/// Returns a conversation whose first or second prompt has `field`.
std::string with_prompt_field(const std::string& role, const std::string& field) {
  return fmt::format(R"({{"messages": [{{"role": "{}", "content": "a", {}}}, {}{{"role": )"
                     R"("assistant", "content": "b"}}]}})",
                     role, field, role == "system" ? R"({"role": "user", "content": "c"}, )" : "");
}

/// Returns the texts in the loss, each in brackets.
std::string in_loss(const std::string& record, const ConversationOptions& options = {}) {
  std::string text;
  for (const auto& segment : parse_jsonl(record, turns_line, options).segments)
    if (segment.in_loss) text += "[" + segment.text + "]";
  return text;
}

void expect_refused(const std::string& record, const std::string& why,
                    const ConversationOptions& options = {}) {
  const auto text = test::error_of([&] { in_loss(record, options); });
  EXPECT_EQ(text.find("'t.jsonl', line 9: "), 0U) << record << "\n" << text;
  EXPECT_NE(text.find(why), std::string::npos) << record << "\n" << text;
}

constexpr std::array all_loss_keys = {"train", "training",  "train_on_turn", "trainable",
                                      "loss",  "loss_mask", "loss_scale",    "weight"};

TEST(RecordFields, AKeyTakesATurnOutOfTheLoss) {
  for (const std::string key : all_loss_keys) {
    for (const char* value : {"false", "0", "0.0"})
      EXPECT_EQ(in_loss(with_field(fmt::format(R"("{}": {})", key, value))), "[d]") << key;
    for (const char* value : {"true", "1", "1.0", "null"})
      EXPECT_EQ(in_loss(with_field(fmt::format(R"("{}": {})", key, value))), "[b][d]") << key;
    for (const char* value : {"\"0\"", "\"false\"", "\"\"", "0.5", "2", "-1", "[]", "[0]", "{}"})
      expect_refused(with_field(fmt::format(R"("{}": {})", key, value)),
                     fmt::format("message 2 has '{}' ", key));
  }
  expect_refused(with_field(R"("weight": 0.5)"),
                 "message 2 has 'weight' 0.5, but a turn is in the loss or not: write true or 1, "
                 "or false or 0; to weigh records, give files weights in data.train");
}

TEST(RecordFields, KeysThatContradictAreRefused) {
  expect_refused(with_field(R"("weight": 1, "train": false)"),
                 "message 2 is in the loss by 'weight', but not by 'train'; keep one of them");
  expect_refused(with_field(R"("loss": 0, "trainable": true)"),
                 "message 2 is in the loss by 'trainable', but not by 'loss'");
  expect_refused(with_field(R"("train": true, "train": false)"), "message 2 is in the loss by");
  EXPECT_EQ(in_loss(with_field(R"("weight": 0, "train": false)")), "[d]");
  EXPECT_EQ(in_loss(with_field(R"("weight": 1, "train": null, "loss": true)")), "[b][d]");
}

TEST(RecordFields, AKeyOnlyNarrowsWhatLossOnIncludes) {
  const auto masked = with_field(R"("train": false)"), kept = with_field(R"("train": true)");
  EXPECT_EQ(in_loss(masked, {.loss_on = LossOn::last_assistant}), "[d]");
  EXPECT_EQ(in_loss(kept, {.loss_on = LossOn::last_assistant}), "[d]");
  EXPECT_EQ(in_loss(masked, {.loss_on = LossOn::all}),
            "[<|user|>\na\n<|assistant|>\n][<|user|>\nc\n<|assistant|>\n][d]");
  const std::string last = R"({"messages": [{"role": "user", "content": "a"}, )"
                           R"({"role": "assistant", "content": "b"}, )"
                           R"({"role": "user", "content": "c"}, )"
                           R"({"role": "assistant", "content": "d", "weight": 0}]})";
  EXPECT_EQ(in_loss(last), "[b]");
  EXPECT_EQ(in_loss(last, {.loss_on = LossOn::last_assistant}), "");  // not the one before
}

TEST(RecordFields, APromptIsInTheLossByLossOnAlone) {
  for (const std::string role : {"user", "system"}) {
    EXPECT_EQ(in_loss(with_prompt_field(role, R"("train": false)")), "[b]");
    EXPECT_EQ(in_loss(with_prompt_field(role, R"("weight": 1)")), "[b]");  // OpenAI's default
    const auto included =
        in_loss(with_prompt_field(role, R"("loss": 1)"), {.loss_on = LossOn::all});
    EXPECT_TRUE(included.ends_with("[b]") && included.starts_with("[<|" + role)) << included;
    expect_refused(with_prompt_field(role, R"("loss": true)"),
                   fmt::format("message 1 ({}) has 'loss', but prompts are not in the loss; remove "
                               "the key, or set data.loss_on=all",
                               role));
    expect_refused(with_prompt_field(role, R"("weight": 0)"),
                   fmt::format("message 1 ({}) has 'weight', but prompts are all in the loss; "
                               "remove the key, or set data.loss_on=assistant",
                               role),
                   {.loss_on = LossOn::all});
  }
}

// With each template, what a key takes out is one answer to its end, and no token changes.
TEST(RecordFields, AMaskedTurnKeepsItsTokens) {
  const auto path = [](const std::string& name) {
    return test::source_file("tests/tokenizer/golden/" + name);
  };
  const std::pair<ChatTemplate, std::string> cases[] = {
      {ChatTemplate::plain, "byte"},
      {ChatTemplate::plain, path("llama2.json")},
      {ChatTemplate::llama2, path("llama2.json")},
      {ChatTemplate::mistral_v1, path("llama2.json")},
      {ChatTemplate::mistral_v3, path("mistral3.json")},
      {ChatTemplate::chatml, path("qwen.json")},
      {ChatTemplate::zephyr, path("metaspace.json")}};
  for (const auto& [chat_template, name] : cases) {
    DataOptions options;
    options.tokenizer = name;
    options.chat_template = chat_template;
    const auto tokenizer = tokenizer::open_tokenizer(name);
    const auto special = document_tokens(*tokenizer, options);
    const auto encoded = [&](const std::string& record) {
      return encode(*tokenizer, special, parse_jsonl(record, turns_line, special.conversations),
                    turns_line);
    };
    const auto whole = encoded(with_field(R"("train": true)"));
    const auto masked = encoded(with_field(R"("train": false)"));
    EXPECT_EQ(masked.ids, whole.ids) << name_of(chat_template);
    // Prompt, answer, prompt, answer: the first three are one range now.
    ASSERT_GE(whole.masked_ranges.size(), 4U);
    auto expected = whole.masked_ranges;
    expected.erase(expected.begin() + 1, expected.begin() + 3);
    EXPECT_EQ(masked.masked_ranges, expected) << name_of(chat_template);
  }
}

TEST(RecordFields, AConversationWithoutATurnInTheLossIsRead) {
  const std::string record = R"({"messages": [{"role": "user", "content": "a"}, )"
                             R"({"role": "assistant", "content": "b", "train": false}]})";
  EXPECT_EQ(in_loss(record), "");
  DataOptions options;
  const auto tokenizer = tokenizer::open_tokenizer("byte");
  const auto special = document_tokens(*tokenizer, options);
  const auto document = encode(*tokenizer, special, parse_jsonl(record, turns_line), turns_line);
  EXPECT_EQ(document.masked_ranges,
            (std::vector<std::int64_t>{0, static_cast<std::int64_t>(document.ids.size())}));
}

TEST(RecordFields, PartsOfATurnCannotBeMasked) {
  expect_refused(
      with_field(R"("train_detail": [{"begin_offset": 0, "end_offset": 0, "train": false}])"),
      "message 2 has 'train_detail'; a turn is in the loss as a whole or not at all; set 'train'");
  EXPECT_EQ(in_loss(with_field(R"("train_detail": [])")), "[b][d]");
  EXPECT_EQ(in_loss(with_field(R"("train_detail": null)")), "[b][d]");
}

TEST(RecordFields, ReasoningIsRefusedOrDropped) {
  for (const char* key : {"reasoning_content", "reasoning", "reasoning_details", "thinking"}) {
    for (const char* value : {R"("First")", R"([{"text": "First"}])", "[null]", "1", "true"}) {
      const auto record = with_field(fmt::format(R"("{}": {})", key, value));
      expect_refused(record, fmt::format("message 2 has '{}'; it would not be trained; write it "
                                         "into 'content', or leave it out with data.reasoning=drop",
                                         key));
      EXPECT_EQ(in_loss(record, {.reasoning = Reasoning::drop}), "[b][d]");
    }
    for (const char* value : {"null", R"("")", "[]", "{}", "false"})
      EXPECT_EQ(in_loss(with_field(fmt::format(R"("{}": {})", key, value))), "[b][d]") << value;
  }
}

TEST(RecordFields, OnlyTextIsRead) {
  for (const char* key : {"images", "image", "audios", "audio", "videos", "video"}) {
    for (const char* value : {R"("a.png")", R"(["a.png"])", "[{}]", R"({"data": "UklG"})", "1"}) {
      const auto field = fmt::format(R"("{}": {})", key, value);
      expect_refused(with_field(field), fmt::format("message 2 has '{}'; only text is", key));
      expect_refused(with_prompt_field("user", field), fmt::format("message 1 has '{}'", key));
      // Beside the conversation, as LLaVA has it.
      expect_refused("{" + field + ", " + with_field(R"("name": "x")").substr(1),
                     fmt::format("has '{}'; only text is supported, remove the record", key));
      EXPECT_EQ(in_loss("{" + field + R"(, "text": "a"})"), "[a]");
    }
    for (const char* value : {"null", R"("")", "[]", "{}", "false", "0"})
      EXPECT_EQ(in_loss(with_field(fmt::format(R"("{}": {})", key, value))), "[b][d]") << value;
  }
}

}  // namespace
}  // namespace llamesh::data
