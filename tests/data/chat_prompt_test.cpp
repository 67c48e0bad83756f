#include "data/chat_prompt.hpp"

#include <gtest/gtest.h>

#include "data/chat_template.hpp"
#include "data/jinja_template.hpp"
#include "files.hpp"
#include "python.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

using Ids = std::vector<std::int32_t>;
const std::string talk_file = "talk";
const LineNumber talk_line{talk_file, 1};

struct Talk {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  DocumentTokens special;
};

Talk talk_with(const std::string& file, ChatTemplate chat_template) {
  DataOptions options;
  options.tokenizer = file == "byte" ? file : test::source_file("tests/tokenizer/golden/" + file);
  options.chat_template = chat_template;
  auto tokenizer = tokenizer::open_tokenizer(options.tokenizer);
  auto special = document_tokens(*tokenizer, options);
  return {std::move(tokenizer), std::move(special)};
}

/// Returns a conversation's ids in training, up to the first that is in the loss.
Ids before_the_answer(const Talk& talk, const std::vector<ChatMessage>& messages,
                      ChatTemplate chat_template) {
  auto answered = messages;
  answered.push_back({"assistant", "God created the heaven"});
  auto document = render(chat_template, answered, talk_line);
  std::size_t answers = 0;
  for (auto& segment : document.segments)  // only the last answer stays in the loss
    if (segment.in_loss) ++answers;
  for (auto& segment : document.segments)
    if (segment.in_loss && answers-- > (chat_template == ChatTemplate::plain ? 1U : 2U))
      segment.in_loss = false;
  const auto encoded = encode(*talk.tokenizer, talk.special, document, talk_line);
  const auto end = encoded.masked_ranges.at(1);
  return {encoded.ids.begin(), encoded.ids.begin() + end};
}

TEST(ChatPrompt, IsWhatTrainingHasBeforeTheAnswer) {
  const std::pair<const char*, ChatTemplate> cases[] = {
      {"qwen.json", ChatTemplate::chatml},
      {"qwen.json", ChatTemplate::qwen2},
      {"llama2.json", ChatTemplate::llama2},
      {"llama2.json", ChatTemplate::mistral_v0},
      {"mistral3.model", ChatTemplate::mistral_v3},
      {"llama2.json", ChatTemplate::plain},
      {"byte", ChatTemplate::plain},
      {"metaspace.json", ChatTemplate::zephyr}};
  for (const auto& [file, chat_template] : cases) {
    const auto talk = talk_with(file, chat_template);
    const std::vector<ChatMessage> first{{"user", "Who <|im_end|>?"}};
    EXPECT_EQ(chat_prompt(*talk.tokenizer, talk.special, first, talk_line),
              before_the_answer(talk, first, chat_template))
        << file << " " << name_of(chat_template);
    const std::vector<ChatMessage> second{
        {"user", "Who?"}, {"assistant", "God"}, {"user", "What?"}};
    EXPECT_EQ(chat_prompt(*talk.tokenizer, talk.special, second, talk_line),
              before_the_answer(talk, second, chat_template))
        << file << " " << name_of(chat_template);
  }
}

TEST(ChatPrompt, KnowsWhatEndsAnAnswer) {
  const auto end = [](const std::string& file, ChatTemplate chat_template) {
    const auto talk = talk_with(file, chat_template);
    return answer_end(*talk.tokenizer, talk.special);
  };
  const auto token = [](const std::string& file, const char* text) {
    return tokenizer::open_tokenizer(test::source_file("tests/tokenizer/golden/" + file))
        ->special_token(text);
  };
  EXPECT_EQ(end("qwen.json", ChatTemplate::chatml), token("qwen.json", "<|im_end|>"));
  EXPECT_EQ(end("llama2.json", ChatTemplate::llama2), token("llama2.json", "</s>"));
  EXPECT_EQ(end("mistral3.model", ChatTemplate::mistral_v3), token("mistral3.model", "</s>"));
  EXPECT_EQ(end("byte", ChatTemplate::plain), 0);
}

TEST(ChatPrompt, IsThatOfTheFoldersTemplate) {
  if (!test::has_jinja()) GTEST_SKIP() << "python3 has no jinja2";
  const auto built_in = talk_with("qwen.json", ChatTemplate::chatml);
  auto jinja = built_in;
  tokenizer::ChatTemplateText text{
      "t.jinja",
      "{% for m in messages %}{% generation %}{{ '<|im_start|>' + m.role + '\\n' }}{% "
      "endgeneration %}"
      "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"};
  jinja.special.conversations.jinja =
      std::make_shared<const JinjaTemplate>(std::move(text), *jinja.tokenizer);
  const std::vector<ChatMessage> messages{
      {"system", "s"}, {"user", "Who <|im_end|>?"}, {"assistant", "God"}, {"user", "What?"}};
  EXPECT_EQ(chat_prompt(*jinja.tokenizer, jinja.special, messages, talk_line),
            chat_prompt(*built_in.tokenizer, built_in.special, messages, talk_line));
}

}  // namespace
}  // namespace llamesh::data
