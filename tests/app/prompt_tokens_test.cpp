#include "app/models/prompt_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/chat_template.hpp"
#include "data/encode_jsonl.hpp"
#include "source_file.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

using data::ChatTemplate;
using PromptIds = std::vector<std::int32_t>;

std::string golden_tokenizer(const std::string& name) {
  return test::source_file("tests/tokenizer/golden/" + name);
}

data::DataOptions chat_options(const std::string& tokenizer, ChatTemplate chat_template) {
  data::DataOptions options;
  options.tokenizer = tokenizer;
  options.chat_template = chat_template;
  return options;
}

/// A conversation's prompt, as text and as training has it.
struct TrainedPrompt {
  std::string text;  ///< without BOS
  PromptIds ids;
};

TrainedPrompt trained_prompt(const tokenizer::Tokenizer& tokenizer,
                             const data::DataOptions& options, bool has_system) {
  const std::string file = "f.jsonl";
  const data::LineNumber where{file, 1};
  const auto special = data::document_tokens(tokenizer, options);
  const std::string system = R"({"role": "system", "content": "Be brief."}, )";
  const auto document =
      data::parse_jsonl(R"({"messages": [)" + (has_system ? system : "") +
                            R"({"role": "user", "content": "In the beginning"}, )"
                            R"({"role": "assistant", "content": "God created"}]})",
                        where, special.conversations);
  TrainedPrompt prompt;
  for (const auto& segment : document.segments) {
    if (segment.in_loss) break;
    if (segment.kind == data::SegmentKind::eos)
      prompt.text += tokenizer.decode(PromptIds{*tokenizer.eos()});
    else
      prompt.text += segment.text;
  }
  const auto encoded = data::encode(tokenizer, special, document, where);
  prompt.ids.assign(encoded.ids.begin(), encoded.ids.begin() + encoded.masked_ranges.at(1));
  return prompt;
}

// From the text of a prompt come the ids that training had, with its BOS and without.
TEST(PromptTokens, OfAConversationAreThoseOfTraining) {
  const struct {
    ChatTemplate chat_template;
    const char* file;
    bool system;
    bool bos;  ///< begins with it
  } cases[] = {
      {ChatTemplate::llama2, "llama2.json", true, true},
      {ChatTemplate::llama2, "metaspace.json", true, true},
      {ChatTemplate::mistral_v1, "llama2.json", true, true},
      {ChatTemplate::mistral_v3, "mistral3.json", false, true},
      {ChatTemplate::chatml, "qwen.json", true, false},
      {ChatTemplate::qwen2, "qwen.json", true, false},
      {ChatTemplate::zephyr, "llama2.json", true, false},  // the tokenizer puts <s> before texts
      {ChatTemplate::zephyr, "metaspace.json", true, false},
      {ChatTemplate::plain, "llama2.json", true, true},
      {ChatTemplate::plain, "llama3.json", true, true},
      {ChatTemplate::plain, "gpt2.json", true, false},
  };
  for (const auto& [chat_template, file, system, bos] : cases) {
    const auto options = chat_options(golden_tokenizer(file), chat_template);
    const auto tokenizer = tokenizer::open_tokenizer(options.tokenizer);
    for (const bool has_system : {false, true}) {
      if (has_system && !system) continue;
      const auto trained = trained_prompt(*tokenizer, options, has_system);
      const auto name =
          fmt::format("{}, {}{}", data::name_of(chat_template), file, has_system ? ", system" : "");
      const auto prompt = encode_prompt(*tokenizer, options, trained.text);
      EXPECT_EQ(prompt.ids, trained.ids) << name << ": " << trained.text;
      EXPECT_EQ(prompt.added, bos ? 1U : 0U) << name;
      if (!bos) continue;
      const auto first = trained.ids.front();
      const auto text = tokenizer->decode(PromptIds{first});
      const auto own = encode_prompt(*tokenizer, options, text + trained.text);
      EXPECT_EQ(own.added, 0U) << name;
      EXPECT_EQ(std::ranges::count(own.ids, first), 1) << name;
      EXPECT_EQ(own.note.find("the prompt already begins with " + text), 0U) << own.note;
      EXPECT_EQ(own.ids, trained.ids) << name;
    }
  }
}

TEST(PromptTokens, OfATextHaveTheTokenizersPrefix) {
  const auto llama2 = tokenizer::open_tokenizer(golden_tokenizer("llama2.json"));
  for (const auto chat_template :
       {ChatTemplate::zephyr, ChatTemplate::llama2, ChatTemplate::plain, ChatTemplate::automatic}) {
    const auto options = chat_options(golden_tokenizer("llama2.json"), chat_template);
    const auto prompt = encode_prompt(*llama2, options, "In the beginning");
    auto expected = llama2->prefix_ids();
    EXPECT_EQ(expected.size(), 1U);
    for (const auto id : llama2->encode("In the beginning")) expected.push_back(id);
    EXPECT_EQ(prompt.ids, expected);
    EXPECT_EQ(prompt.note, "");
    EXPECT_EQ(encode_prompt(*llama2, options, "").ids, llama2->prefix_ids());
  }
  const auto byte = tokenizer::open_tokenizer("byte");
  EXPECT_EQ(encode_prompt(*byte, chat_options("byte", ChatTemplate::plain), "ab").ids,
            (PromptIds{'a', 'b'}));
}

TEST(PromptTokens, SayWhatTheirTemplateChanges) {
  const auto file = golden_tokenizer("llama2.json");
  const auto tokenizer = tokenizer::open_tokenizer(file);
  const auto note = [&](ChatTemplate chat_template, const std::string& prompt) {
    return encode_prompt(*tokenizer, chat_options(file, chat_template), prompt).note;
  };
  EXPECT_EQ(note(ChatTemplate::zephyr, "<|user|>\nHi</s>\n"),
            "the prompt uses the chat template zephyr, so it begins without BOS as in "
            "training");
  EXPECT_EQ(note(ChatTemplate::llama2, "[INST] Hi [/INST]"), "") << "the prefix is the same";
  EXPECT_EQ(note(ChatTemplate::zephyr, "<s> Hi"),
            "the prompt already begins with <s>, so no other is added");
}

// A SentencePiece model puts nothing before texts, but the template has a BOS.
TEST(PromptTokens, OfASentencePieceModelHaveItsTemplatesBos) {
  const auto options = chat_options(golden_tokenizer("bpe.model"), ChatTemplate::llama2);
  const auto tokenizer = tokenizer::open_tokenizer(options.tokenizer);
  EXPECT_TRUE(tokenizer->prefix_ids().empty());
  const auto trained = trained_prompt(*tokenizer, options, false);
  const auto prompt = encode_prompt(*tokenizer, options, trained.text);
  EXPECT_EQ(prompt.ids, trained.ids);
  EXPECT_EQ(prompt.note,
            "the prompt uses the chat template llama2, so it begins with BOS as in "
            "training");
  EXPECT_EQ(encode_prompt(*tokenizer, options, "<s>" + trained.text).ids, trained.ids);
}

}  // namespace
}  // namespace llamesh::app
