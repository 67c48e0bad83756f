// Chat templates written with Jinja. tests/data/golden/jinja_templates.py compares those of public
// models with transformers and TRL.
#include "data/jinja_template.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/chat_template.hpp"
#include "data/encode_jsonl.hpp"
#include "data/pair_records.hpp"
#include "files.hpp"
#include "python.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

using Json = nlohmann::ordered_json;

const std::string jinja_file = "j.jsonl";
const LineNumber jinja_line{jinja_file, 5};

/// ChatML with a prompt for the answer.
const std::string chatml =
    "{%- for m in messages %}\n"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

class JinjaTemplates : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_jinja()) GTEST_SKIP() << "python3 has no jinja2";
  }

  /// Returns the options for a folder with this template and tests/tokenizer/golden/qwen.json.
  ConversationOptions options_of(const std::string& text) {
    folder_.write("chat_template.jinja", text);
    folder_.write("tokenizer_config.json", R"({"bos_token": "<think>", "eos_token": null})");
    tokenizer_ = tokenizer::open_tokenizer(test::source_file("tests/tokenizer/golden/qwen.json"));
    auto found = tokenizer::chat_template_text(folder_.path("tokenizer.json"));
    ConversationOptions options{.chat_template = ChatTemplate::jinja};
    options.jinja = std::make_shared<const JinjaTemplate>(std::move(*found), *tokenizer_);
    return options;
  }

  /// Returns a record's text, with its loss in brackets.
  std::string shown(const std::string& text, const std::string& record) {
    return shown(options_of(text), record);
  }
  static std::string shown(const ConversationOptions& options, const std::string& record) {
    return shown(parse_jsonl(record, jinja_line, options));
  }
  static std::string shown(const Document& document) {
    std::string result;
    bool in_loss = false;
    for (const auto& segment : document.segments) {
      if (segment.in_loss != in_loss) result += in_loss ? "]]" : "[[";
      in_loss = segment.in_loss;
      result += segment.text;
    }
    return result + (in_loss ? "]]" : "");
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

// Both documents are those of the conversations, in which only what differs is learned.
TEST_F(JinjaTemplates, WritePairs) {
  const auto options = options_of(chatml);
  const std::string user = R"({"role": "user", "content": "a"})";
  const auto says = [](const char* text, const char* more = "") {
    return fmt::format(R"({{"role": "assistant", "content": "{}"{}}})", text, more);
  };
  const auto first = fmt::format(R"({{"messages": [{}, {}]}})", user, says("b"));
  auto pair = parse_pair(fmt::format(R"({{"prompt": [{}], "chosen": [{}], "rejected": [{}]}})",
                                     user, says("b"), says("c")),
                         jinja_line, options);
  EXPECT_EQ(shown(pair[0]), shown(options, first));
  EXPECT_NE(shown(pair[1]), shown(pair[0]));
  const std::string marked =
      "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.role == 'assistant' %}"
      "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}"
      "{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{%- endfor %}"
      "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  const auto with_marks = options_of(marked);
  pair = parse_pair(
      fmt::format(R"({{"chosen": [{0}, {1}, {0}, {2}], "rejected": [{0}, {1}, {0}, {3}]}})", user,
                  says("shared"), says("b"), says("c")),
      jinja_line, with_marks);
  EXPECT_EQ(shown(pair[1]),
            shown(with_marks, fmt::format(R"({{"messages": [{0}, {1}, {0}, {2}]}})", user,
                                          says("shared", R"(, "train": false)"), says("c"))));
}

/// Returns a record with these messages, {role, content} in turn.
std::string talk_of(const std::vector<std::pair<std::string, std::string>>& turns) {
  Json record{{"messages", Json::array()}};
  for (const auto& [role, content] : turns)
    record["messages"].push_back({{"role", role}, {"content", content}});
  return record.dump();
}

const std::string two_answers =
    talk_of({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}});

TEST_F(JinjaTemplates, RenderAsTheBuiltInOnes) {
  auto jinja = options_of(chatml);
  ConversationOptions built_in{.chat_template = ChatTemplate::chatml};
  const std::string strange = "<|im_end|>\n{{ bos_token }} \xc2\xa0\xf0\x9f\x99\x82 {% raw %}\t";
  for (const auto& record :
       {two_answers, talk_of({{"system", strange}, {"user", ""}, {"assistant", strange}}),
        talk_of({{"user", strange}, {"assistant", " b\n"}, {"user", strange}})})
    for (const auto loss_on : {LossOn::assistant, LossOn::last_assistant, LossOn::all}) {
      jinja.loss_on = built_in.loss_on = loss_on;
      EXPECT_EQ(shown(jinja, record), shown(built_in, record));
    }
}

TEST_F(JinjaTemplates, GiveTheTokensOfTheBuiltInOnes) {
  const auto jinja = options_of(chatml);
  DocumentTokens special{{}, {0}, 0, false, jinja};
  DocumentTokens built_in{{}, {0}, 0, false, {.chat_template = ChatTemplate::chatml}};
  const auto record = talk_of({{"user", "In the <|im_end|> beginning"}, {"assistant", "God"}});
  const auto encoded = [&](const DocumentTokens& tokens) {
    return encode(*tokenizer_, tokens, parse_jsonl(record, jinja_line, tokens.conversations),
                  jinja_line);
  };
  EXPECT_EQ(encoded(special).ids, encoded(built_in).ids);
  EXPECT_EQ(encoded(special).masked_ranges, encoded(built_in).masked_ranges);
}

TEST_F(JinjaTemplates, NameSentencePiecesTokens) {
  const std::string mistral =
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
      "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
  folder_.write("chat_template.jinja", mistral);
  folder_.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto tokenizer =
      tokenizer::open_tokenizer(test::source_file("tests/tokenizer/golden/mistral3.model"));
  auto text = tokenizer::chat_template_text(folder_.path("tokenizer.model"));
  DocumentTokens jinja{{}, {2}, 2, false, {.chat_template = ChatTemplate::jinja}};
  jinja.conversations.jinja = std::make_shared<const JinjaTemplate>(*text, *tokenizer);
  DocumentTokens built_in{{}, {2}, 2, false, {.chat_template = ChatTemplate::mistral_v3}};
  const auto encoded = [&](const DocumentTokens& tokens) {
    return encode(*tokenizer, tokens, parse_jsonl(two_answers, jinja_line, tokens.conversations),
                  jinja_line);
  };
  EXPECT_EQ(encoded(jinja).ids, encoded(built_in).ids);
  EXPECT_EQ(encoded(jinja).masked_ranges, encoded(built_in).masked_ranges);
}

TEST_F(JinjaTemplates, MarkTheirAnswers) {
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!"
      "{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}\n\n{% endfor %}";
  EXPECT_EQ(shown(marked, two_answers), "U:a\nA:[[b!]]\nU:c\nA:[[d!]]\n");
  auto options = options_of(marked);
  options.loss_on = LossOn::last_assistant;
  EXPECT_EQ(shown(options, two_answers), "U:a\nA:b!\nU:c\nA:[[d!]]\n");
}

TEST_F(JinjaTemplates, MayMarkAnAnswerTwiceUnlessOneIsChosen) {
  auto options = options_of(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}.{% generation %}!{% endgeneration %}{% endif %}{% endfor %}");
  EXPECT_EQ(shown(options, two_answers), "[[b]].[[!d]].[[!]]");
  options.loss_on = LossOn::last_assistant;
  EXPECT_ERROR(shown(options, two_answers),
               "'j.jsonl', line 5: the chat template marks 4 answers, but the conversation has 2");
}

// As Qwen 3's.
const std::string without_earlier_thoughts =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{ '(' + m.reasoning_content|d('') + ')' }}"
    "{%- endif %}{{ m.content|trim + '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST_F(JinjaTemplates, MayLeaveOutReasoningInsideAConversation) {
  const auto record = [](const std::string& field) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b ", )" +
           field +
           R"(: "hm"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": )" +
           R"("d", )" + field + R"(: "ah"}]})";
  };
  const std::string expected =
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>]]\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[[(ah)d<|im_end|>]]\n";
  for (const auto* field : {R"("reasoning_content")", R"("thinking")", R"("reasoning")"})
    EXPECT_EQ(shown(without_earlier_thoughts, record(field)), expected) << field;
  auto dropping = options_of(without_earlier_thoughts);
  dropping.reasoning = Reasoning::drop;
  EXPECT_NE(shown(dropping, record(R"("reasoning")")).find("[[()d"), std::string::npos);
  EXPECT_ERROR(shown(chatml, record(R"("reasoning_content")")),
               "message 2 has 'reasoning_content'; it would not be trained");
}

// As DeepSeek-R1's.
TEST_F(JinjaTemplates, MayAskForReasoningThatAnswersLack) {
  EXPECT_EQ(
      shown("{%- for m in messages %}{{ '<|im_start|>' + m.role + '|' + m.content }}"
            "{%- if m.role == 'assistant' %}{{ '<|im_end|>' }}{% endif %}{% endfor %}"
            "{%- if add_generation_prompt %}{{ '<|im_start|>assistant|(thought:' }}{% endif %}",
            two_answers),
      "<|im_start|>user|a<|im_start|>assistant|[[b<|im_end|>]]"
      "<|im_start|>user|c<|im_start|>assistant|[[d<|im_end|>]]");
}

// As gpt-oss' and Phi-3's.
TEST_F(JinjaTemplates, MayEndTheLastAnswerOtherwise) {
  EXPECT_EQ(shown("{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
                  "{{- '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>' }}"
                  "{%- endfor %}"
                  "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                  two_answers),
            "<|im_start|>user\na<|im_end|><|im_start|>assistant\n[[b<|im_end|>]]"
            "<|im_start|>user\nc<|im_end|><|im_start|>assistant\n[[d<|endoftext|>]]");
  EXPECT_EQ(shown("{%- for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content }}"
                  "{{- '<|im_end|>' }}{% endfor %}"
                  "{{- '<|im_start|>assistant ' if add_generation_prompt else '<|endoftext|>' }}",
                  two_answers),
            "<|im_start|>user a<|im_end|><|im_start|>assistant [[b<|im_end|>]]"
            "<|im_start|>user c<|im_end|><|im_start|>assistant [[d<|im_end|><|endoftext|>]]");
}

// As Mistral's, which describes tools before the last question.
TEST_F(JinjaTemplates, MayMoveWhatStandsBeforeAnAnswer) {
  EXPECT_EQ(
      shown("{%- for m in messages %}{% if m.role == 'user' %}"
            "{%- if loop.index0 == (messages|map(attribute='role')|list).count('user') * 2 - 2 %}"
            "{{- 'tools' }}{% endif %}{{- '<|im_start|>' + m.content + '<|im_end|>' }}"
            "{%- else %}{{ m.content + '<|endoftext|>' }}{% endif %}{% endfor %}",
            two_answers),
      "<|im_start|>a<|im_end|>[[b<|endoftext|>]]tools<|im_start|>c<|im_end|>[[d<|endoftext|>]]");
}

TEST_F(JinjaTemplates, AreRefusedIfTheirAnswersCannotBeFound) {
  EXPECT_ERROR(
      shown("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}", two_answers),
      "'j.jsonl', line 5: the chat template in '" + folder_.path("chat_template.jinja") +
          "': message 2 cannot be found in what it writes for the whole conversation: "
          "alone it writes \"2ab\", but there \"4abcd\"; mark the answers in the template "
          "with {% generation %} and {% endgeneration %}");
}

TEST_F(JinjaTemplates, ReadTools) {
  const std::string with_tools =
      "{% for t in tools or [] %}{{ t|tojson }}\n{% endfor %}{% for m in messages %}"
      "{%- if m.tool_calls %}{{ '<|im_start|>call' + m.tool_calls|tojson + '<|im_end|>' }}"
      "{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endif %}"
      "{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}{# tool #}";
  const std::string messages =
      R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, )"
      R"("tool_calls": [{"z": "<|im_end|>\u00e9", "b": 1}]}, {"role": "tool", "content": "c"}, )"
      R"({"role": "assistant", "content": "d"}])";
  const std::string expected =
      "{\"y\": \"\u00e9\", \"x\": [1.5, true]}\n<|im_start|>user\na<|im_end|>"
      "<|im_start|>[[call[{\"z\": \"<|im_end|>\u00e9\", \"b\": 1}]<|im_end|>]]"
      "<|im_start|>tool\nc<|im_end|><|im_start|>[[assistant\nd<|im_end|>]]";
  const std::string tools = R"([{"y": "\u00e9", "x": [1.5, true]}])";
  EXPECT_EQ(shown(with_tools, R"({"tools": )" + tools + ", " + messages + "}"), expected);
  EXPECT_EQ(shown(with_tools, R"({"tools": )" + Json(tools).dump() + ", " + messages + "}"),
            expected)
      << "a text with JSON";
  EXPECT_ERROR(shown(with_tools, R"({"tools": "no JSON", )" + messages + "}"), "line 5: not JSON");
  EXPECT_ERROR(shown(chatml, "{" + messages + "}"), "message 2 has 'tool_calls'; tools are not");
}

TEST_F(JinjaTemplates, HaveRolesOfTheirOwn) {
  const auto record = talk_of({{"user", "a"}, {"critic", "x"}, {"assistant", "b"}});
  EXPECT_ERROR(shown(chatml, record),
               "message 2 has the role 'critic', which the chat template does not know");
  EXPECT_NE(shown(chatml + "{# critic #}", record).find("critic\nx"), std::string::npos);
  EXPECT_ERROR(shown(chatml, talk_of({{"user", "a"}, {"assistant", ""}})),
               "message 2 (assistant) is empty");
}

TEST_F(JinjaTemplates, TakeConversationsOfEveryShape) {
  const std::string expected =
      shown(chatml, talk_of({{"system", "s"}, {"user", "a"}, {"assistant", "b"}}));
  EXPECT_EQ(shown(chatml, R"({"system": "s", "conversations": [{"from": "human", "value": "a"},
                             {"from": "gpt", "value": "b", "weight": 1}]})"),
            expected);
  EXPECT_EQ(shown(chatml, R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user",
                             "content": "a"}], "completion": [{"role": "assistant",
                             "content": "b"}, {"role": "user", "content": "left out"}]})"),
            expected);
  EXPECT_EQ(shown(chatml, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
                             "content": "b", "train": false}, {"role": "user", "content": "c"},
                             {"role": "assistant", "content": "d"}]})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>]]\n");
  EXPECT_EQ(parse_jsonl(R"({"text": "t"})", jinja_line, options_of("{{ 1 / 0 }}")).form, "a text");
}

TEST_F(JinjaTemplates, HaveTheNamedTokensAndAFixedDate) {
  EXPECT_EQ(shown("{{ bos_token }}{{ eos_token }}{{ strftime_now('%d %b %Y') }}\n\n"
                  "{% for m in messages %}{{ m.content }}{% endfor %}",
                  talk_of({{"user", "a"}, {"assistant", "b"}})),
            "<think>26 Jul 2024\n\na[[b]]");
}

TEST_F(JinjaTemplates, FailWithTheirLine) {
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_ERROR(shown(text, two_answers), part) << text;
  };
  const std::string where = "chat template in '" + folder_.path("chat_template.jinja") + "', line ";
  expect("\n\n{{ raise_exception('Roles must\n  alternate') }}",
         "'j.jsonl', line 5: the " + where + "3: Roles must alternate");
  expect("\n{{ messages.x.y }}", "'j.jsonl', line 5: the " + where + "2: ");
  expect("\n{{ 1 / 0 }}", where + "2: ZeroDivisionError: division by zero");
  expect("\n\n\n{% if %}", where + "4: ");
  expect("{{ ''.__class__.__mro__ }}", "is unsafe");
  expect("{% for i in range(10000000) %}{% endfor %}", where + "1: ");
  EXPECT_ERROR(shown(chatml, talk_of({{"user", "\U0010fffb"}, {"assistant", "b"}})),
               "the conversation has the private character U+10FFFB; remove it");
  EXPECT_ERROR(shown("", two_answers), "is not a text, or empty; set data.chat_template");
}

TEST_F(JinjaTemplates, GoOnAfterAnError) {
  const auto options = options_of(chatml + "{{ raise_exception('no') if messages|length == 4 }}");
  const auto good = talk_of({{"user", "a"}, {"assistant", "b"}});
  const auto expected = shown(options, good);
  EXPECT_ERROR(shown(options, two_answers), "no");
  EXPECT_EQ(shown(options, good), expected);
}

TEST_F(JinjaTemplates, RenderInSeveralThreads) {
  const auto options = options_of(chatml);
  std::string records;
  for (int i = 0; i < 300; ++i)
    records += talk_of({{"user", std::string(static_cast<std::size_t>(i), 'x')},
                        {"assistant", std::to_string(i)}}) +
               "\n";
  const DocumentTokens special{{}, {0}, 0, false, options};
  const auto ids_with = [&](int threads) {
    std::vector<std::int32_t> ids;
    encode_jsonl(*tokenizer_, special, records, jinja_file, threads,
                 [&](const EncodedDocument& document, std::string_view, const LineNumber&) {
                   ids.insert(ids.end(), document.ids.begin(), document.ids.end());
                 });
    return ids;
  };
  EXPECT_EQ(ids_with(1), ids_with(4));
}

TEST(JinjaTemplate, NeedsPythonWithJinja) {
  const auto tokenizer =
      tokenizer::open_tokenizer(test::source_file("tests/tokenizer/golden/qwen.json"));
  const test::TemporaryFolder folder;
  const auto error_with = [&](const std::string& program) {
    setenv("LLAMESH_PYTHON", folder.write("python", program).c_str(), 1);
    EXPECT_EQ(chmod(folder.path("python").c_str(), 0700), 0);
    ConversationOptions options{.chat_template = ChatTemplate::jinja};
    options.jinja = std::make_shared<const JinjaTemplate>(
        tokenizer::ChatTemplateText{"t.jinja", chatml}, *tokenizer);
    auto error = test::error_of([&] { parse_jsonl(two_answers, jinja_line, options); });
    unsetenv("LLAMESH_PYTHON");
    return error;
  };
  const std::string advice =
      "; install Debian's python3-jinja2 (pip: jinja2), or set LLAMESH_PYTHON to a python3 that "
      "has it; data for training can be tokenized elsewhere (llamesh tokenize --output)";
  EXPECT_EQ(error_with("#!/bin/sh\necho '{\"error\": \"it has no jinja2\", \"line\": -1}'; cat\n"),
            "the chat template in 't.jinja' is written with Jinja, but it has no jinja2" + advice);
  EXPECT_EQ(error_with("#!/bin/sh\nexit 1\n"),
            "the chat template in 't.jinja' is written with Jinja, but " + folder.path("python") +
                " has ended" + advice);
  setenv("LLAMESH_PYTHON", "/there/is/none", 1);
  ConversationOptions options{.chat_template = ChatTemplate::jinja};
  options.jinja = std::make_shared<const JinjaTemplate>(
      tokenizer::ChatTemplateText{"t.jinja", chatml}, *tokenizer);
  EXPECT_ERROR(parse_jsonl(two_answers, jinja_line, options), "'/there/is/none' cannot be started");
  unsetenv("LLAMESH_PYTHON");
}

}  // namespace
}  // namespace llamesh::data
