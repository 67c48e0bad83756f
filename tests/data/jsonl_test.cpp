#include "data/jsonl.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "data/encode_jsonl.hpp"
#include "files.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

using Ids = std::vector<std::int32_t>;
using Edges = std::vector<std::int64_t>;
const std::string file_name = "f.jsonl";
const std::string llama2 = test::source_file("tests/tokenizer/golden/llama2.json");
const std::string gpt2 = test::source_file("tests/tokenizer/golden/gpt2.json");

DataOptions with_tokenizer(const std::string& tokenizer) {
  DataOptions options;
  options.tokenizer = tokenizer;
  return options;
}

/// Formats the segments: brackets mark the loss, $ is EOS.
std::string parsed(const std::string& line, LossOn loss_on = LossOn::assistant) {
  std::string text;
  for (const TextSegment& segment :
       parse_jsonl(line, {file_name, 7}, {.loss_on = loss_on}).segments)
    text += (segment.in_loss ? "[" : "") + segment.text + (segment.eos_follows ? "$" : "") +
            (segment.in_loss ? "]" : "");
  return text;
}

TEST(Jsonl, TextCountsAsAWhole) {
  EXPECT_EQ(parsed(R"({"text": "In the\nbeginning \u00e9\ud83d\ude00"})"),
            "[In the\nbeginning \u00e9\U0001f600$]");
  EXPECT_EQ(parsed(R"( {"id": 5, "meta": {"text": 4, "messages": [1]}, "text": "a", "output": "x"}
)"),
            "[a$]");
  EXPECT_EQ(parsed("\xef\xbb\xbf{\"text\": \"a\", \"messages\": null, \"input\": null}\r"), "[a$]");
}

TEST(Jsonl, InstructionsHaveAlpacasForm) {
  const std::string head = "Below is an instruction that describes a task";
  const std::string request =
      ". Write a response that appropriately completes the request.\n\n### Instruction:\n";
  for (const char* input : {"", R"("input": "", )", R"("input": null, )"})
    EXPECT_EQ(parsed(std::string("{") + input + R"("instruction": "Add.", "output": "4"})"),
              head + request + "Add.\n\n### Response:[4$]");
  EXPECT_EQ(parsed(R"({"output": "4", "instruction": "Add.", "input": "2 2", "text": "not this"})"),
            head + ", paired with an input that provides further context" + request +
                "Add.\n\n### Input:\n2 2\n\n### Response:[4$]");
  // Some Alpaca answers are empty: the model learns to end at once.
  EXPECT_EQ(parsed(R"({"instruction": "Add.", "output": ""})"),
            head + request + "Add.\n\n### Response:[$]");
}

TEST(Jsonl, OfChatsTheAssistantsTurnsCount) {
  EXPECT_EQ(parsed(R"({"messages": [{"role": "system", "content": "Be brief."},
      {"content": "Hi", "role": "user", "name": {"content": ["x"]}},
      {"role": "assistant", "content": "Yes?", "tools": [{"role": 1}]},
      {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Bye."},
      {"role": "user", "content": "left out"}], "text": "not this"})"),
            "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n[Yes?$]"
            "<|user|>\nBye\n<|assistant|>\n[Bye.$]");
  // Empty lists of tools are none.
  EXPECT_EQ(parsed(R"({"tools": [], "messages": [{"role": "user", "content": ""},
      {"role": "assistant", "content": "Hello", "tool_calls": []}]})"),
            "<|user|>\n\n<|assistant|>\n[Hello$]");
  EXPECT_EQ(parsed(R"({"tools": "", "functions": null, "messages": [{"role": "user",
      "content": "a", "tool_calls": null}, {"role": "assistant", "content": "Hello",
      "function_call": null, "tool_calls": ""}]})"),
            "<|user|>\na\n<|assistant|>\n[Hello$]");
}

TEST(Jsonl, ShareGptsConversationsAreConversations) {
  const std::string expected = "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n[Yes?$]";
  for (const auto* assistant : {"gpt", "chatgpt", "bot", "assistant"})
    EXPECT_EQ(parsed(fmt::format(R"({{"id": "x", "conversations": [
                  {{"from": "system", "value": "Be brief."}}, {{"value": "Hi", "from": "human"}},
                  {{"from": "{}", "value": "Yes?", "weight": 1}}]}})",
                                 assistant)),
              expected);
  EXPECT_EQ(parsed(R"({"system": "Be brief.", "conversation": [{"from": "user", "value": "Hi"},
      {"from": "gpt", "value": "Yes?"}]})"),
            expected);
  EXPECT_EQ(parsed(R"({"system": "", "conversations": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Yes?"}]})"),
            "<|user|>\nHi\n<|assistant|>\n[Yes?$]");
}

/// Only the completion is in the loss, also of answers before it.
TEST(Jsonl, PromptsHaveCompletions) {
  EXPECT_EQ(parsed(R"({"completion": " blue.", "prompt": "The sky is", "text": "not this"})"),
            "The sky is[ blue.$]");
  EXPECT_EQ(parsed(R"({"prompt": "a", "completion": "b"})", LossOn::all), "[a][b$]");
  EXPECT_EQ(parsed(R"({"prompt": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
      "completion": [{"role": "assistant", "content": "d"}]})"),
            "<|user|>\na\n<|assistant|>\nb$<|user|>\nc\n<|assistant|>\n[d$]");
  EXPECT_EQ(parsed(R"({"prompt": "only this", "text": "a"})"), "[a$]");
  EXPECT_EQ(parsed(R"({"prompt": 5, "context": ["x"], "response": {}, "text": "a"})"), "[a$]");
}

TEST(Jsonl, DollysFieldsAreAlpacas) {
  EXPECT_EQ(
      parsed(R"({"instruction": "Add.", "context": "2 2", "response": "4", "category": "x"})"),
      parsed(R"({"instruction": "Add.", "input": "2 2", "output": "4"})"));
  EXPECT_EQ(parsed(R"({"instruction": "Add.", "context": "2 2", "output": "4"})"),
            parsed(R"({"instruction": "Add.", "output": "4"})"));
}

/// A field with another name hides that with the usual one.
TEST(Jsonl, ColumnsHaveNamesOfTheirOwn) {
  const auto text = [](const std::string& line, const RecordColumns& columns) {
    std::string all;
    for (const auto& segment : parse_jsonl(line, {file_name, 7}, {.columns = columns}).segments)
      all += (segment.in_loss ? "[" : "") + segment.text + (segment.in_loss ? "]" : "");
    return all;
  };
  const std::string record = R"({"question": "a", "answer": "b", "text": "c", "body": "d",
      "turns": [{"from": "human", "value": "e"}, {"from": "gpt", "value": "f"}]})";
  EXPECT_EQ(text(record, {.prompt = "question", .completion = "answer"}), "a[b]");
  EXPECT_EQ(text(record, {.instruction = "question", .output = "answer"}),
            text(R"({"instruction": "a", "output": "b"})", {}));
  EXPECT_EQ(text(record, {.messages = "turns"}), "<|user|>\ne\n<|assistant|>\n[f]");
  EXPECT_EQ(text(record, {.text = "body"}), "[d]");
  EXPECT_EQ(text(R"({"prompt": "a", "completion": "b", "text": "c"})", {.prompt = "none"}), "[c]");
}

TEST(Jsonl, TheLossMayCoverTheLastAnswerOrEverything) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
      {"role": "assistant", "content": "d"}]})";
  EXPECT_EQ(parsed(chat, LossOn::last_assistant),
            "<|user|>\na\n<|assistant|>\nb$<|user|>\nc\n<|assistant|>\n[d$]");
  EXPECT_EQ(parsed(chat, LossOn::all),
            "[<|user|>\na\n<|assistant|>\n][b$][<|user|>\nc\n<|assistant|>\n][d$]");
  const std::string instruction = R"({"instruction": "a", "output": "b"})";
  EXPECT_EQ(parsed(instruction, LossOn::last_assistant), parsed(instruction));
  EXPECT_TRUE(parsed(instruction, LossOn::all).starts_with("[Below is"));
  for (const auto loss_on : {LossOn::last_assistant, LossOn::all})
    EXPECT_EQ(parsed(R"({"text": "a"})", loss_on), "[a$]");
}

TEST(Jsonl, RefusalsNameFileAndLine) {
  const auto refused = [](const std::string& line, const std::string& why) {
    const std::string text = test::error_of([&] { parsed(line); });
    EXPECT_EQ(text.find("'f.jsonl', line 7: "), 0U) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  refused(R"({"text": "a)", "not valid JSON at byte 12");
  refused(R"({"text": "a"} {"text": "b"})", "not valid JSON");
  refused("{\"text\": \"\xff\"}", "not UTF-8 at byte 11 of the line");
  refused(R"({"text": "\ud83d"})", "escape at byte 17 of the line is half of a surrogate pair");
  refused("nonsense", "not valid JSON");
  refused(std::string("{\"text\": \"a\"}\0 more", 19), "not valid JSON at byte 14");
  for (const char* line : {"5", "\"text\"", "[1]", "null", "true"})
    refused(line, "expected one JSON object");
  refused("{}",
          "has neither 'messages', nor 'instruction' and 'output', nor 'prompt' and "
          "'completion', nor 'text'");
  refused(R"({"instruction": "a"})", "nor 'text'; it has 'instruction': say in data.columns which");
  refused(R"({"question": "a", "id": 5, "answer": "b"})", "it has 'answer', 'question': say in");
  refused(R"({"text": null})", "has neither");
  refused(R"({"prompt": "", "completion": "b"})", "'prompt' is empty");
  refused(R"({"prompt": [], "completion": "b"})", "only one is a list of messages");
  refused(R"({"prompt": [5], "completion": "b"})", "'prompt' must be a list of objects");
  refused(R"({"prompt": "a", "completion": "b", "system": "s"})",
          "has 'system' without 'messages'");
  refused(R"({"prompt": "a", "completion": "b", "tools": [{"name": "f"}]})", "has 'tools'");
  refused(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})",
          "has 'system' beside a first message with that role");
  refused(R"({"system": {"a": 1}, "messages": [{"role": "user", "content": "t"}]})",
          "has 'system'");
  refused(R"({"conversations": [{"from": "human"}]})",
          "message 1 has no 'content' (ShareGPT: 'value') with a text");
  refused(R"({"conversations": [{"from": "human", "value": "a"}, {"from": "bard", "value": "b"}]})",
          "message 2 has the role 'bard'");
  refused(R"({"conversations": [{"from": "observation", "value": "a"}]})",
          "tools are not supported");
  refused(R"({"conversations": [], "messages": []})", "'messages' appears twice");
  refused(R"({"text": ""})", "'text' is empty");
  refused(R"({"text": 5})", "'text' must be a string");
  refused(R"({"text": ["a"]})", "'text' must be a string");
  refused(R"({"text": "a", "text": "b"})", "'text' appears twice");
  refused(R"({"instruction": "", "output": "b"})", "'instruction' is empty");
  refused(R"({"instruction": "a", "output": true})", "'output' must be a string");
  refused(R"({"messages": []})", "the chat has no assistant message");
  refused(R"({"messages": [{"role": "user", "content": "a"}]})",
          "the chat has no assistant message");
  refused(R"({"messages": {"role": "user"}})", "'messages' must be a list of objects");
  refused(R"({"messages": "a"})", "'messages' must be a list of objects");
  refused(R"({"messages": ["a"]})", "'messages' must be a list of objects");
  refused(R"({"messages": [null]})", "'messages' must be a list of objects");
  refused(R"({"messages": [[{"role": "user"}]]})", "'messages' must be a list of objects");
  refused(R"({"messages": [{"role": "user"}]})",
          "message 1 has no 'content' (ShareGPT: 'value') with a text");
  refused(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
          "'content' must be a string");
  refused(R"({"messages": [{"role": "tool", "content": "a"}]})", "message 1 has the role 'tool'");
  refused(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})",
      "message 2 (assistant) is empty");
  refused(R"({"messages": [{"role": "tool", "content": "a"}]})", "tools are not supported");
  refused(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]})",
          "message 1 has 'tool_calls'; tools are not supported");
  refused(R"({"tools": [{"name": "f"}], "messages": [{"role": "user", "content": "a"}]})",
          "has 'tools'; tools are not supported");
  for (const char* tools : {R"("[{\"name\": \"f\"}]")", "[null]", R"({"name": "f"})"})
    for (const char* field : {"tools", "functions"})
      refused(fmt::format(R"({{"{}": {}, "messages": [{{"role": "user", "content": "a"}}]}})",
                          field, tools),
              fmt::format("has '{}'; tools are not supported, remove the record", field));
  for (const char* call : {R"("f")", "[null]", R"({"name": "f", "arguments": "{}"})"})
    for (const char* field : {"tool_calls", "function_call"})
      refused(fmt::format(R"({{"messages": [{{"role": "assistant", "{}": {}, "content": "a"}}]}})",
                          field, call),
              fmt::format("message 1 has '{}'; tools are not supported", field));
  const std::string chat = R"("messages": [{"role": "assistant", "content": "a"}]})";
  const std::string instruction = R"("instruction": "a", "output": "b"})";
  for (const std::string& record : {chat, instruction})
    refused(R"({"history": [["a", "b"]], )" + record, "has 'history'; it is not read");
  refused(R"({"system": "Be terse.", )" + instruction, "has 'system' without 'messages'");
  EXPECT_EQ(parsed(R"({"system": "", "history": [], "messages": [{"role": "user", "content": "a"},)"
                   R"({"role": "assistant", "content": "b"}]})"),
            "<|user|>\na\n<|assistant|>\n[b$]");
  std::string long_role = "x";
  for (int i = 0; i < 100; ++i) long_role += "\u00e9";
  const std::string end = long_role.substr(0, 119) + "...'; expected system";
  refused(R"({"messages": [{"role": ")" + long_role + R"(", "content": "a"}]})", end);
  const auto roles = [](std::initializer_list<const char*> names) {
    std::string list;
    for (const char* name : names)
      list += fmt::format(R"({}{{"role": "{}", "content": "a"}})", list.empty() ? "" : ", ", name);
    return R"({"messages": [)" + list + "]}";
  };
  refused(roles({"assistant"}), "message 1 has the role 'assistant', but it is the user's turn");
  refused(roles({"user", "user", "assistant"}),
          "message 2 has the role 'user', but it is the assistant's turn");
  refused(roles({"system", "assistant"}),
          "message 2 has the role 'assistant', but it is the user's");
  refused(roles({"user", "system", "assistant"}), "message 2 has the role 'system', but");
  refused(roles({"system", "system", "user", "assistant"}), "message 2 has the role 'system', but");
  refused(roles({"user", "Assistant"}), "message 2 has the role 'Assistant'; expected system");
  const std::string deep(std::size_t{10'000'000}, '[');  // NOLINT(bugprone-string-constructor)
  refused(deep, "expected one JSON object");
  refused(R"({"a": )" + deep, "not valid JSON");  // if kept, it would take a GiB
}

/// Returns a text's records with their positions, or the error.
std::string records_of(const std::string& text) {
  JsonRecords records(text, file_name);
  std::string seen;
  try {
    for (std::string_view record; records.next(record);)
      seen += fmt::format("{} {}; ", records.where(), record);
    std::string_view none;
    EXPECT_FALSE(records.next(none));  // the end stays the end
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    seen += error.what();
  }
  return seen;
}

TEST(Jsonl, LinesAreCountedAndBlankOnesPassedOver) {
  EXPECT_EQ(records_of("\n{1}\r\n \t\r\n{2}\n\n{3}"),
            "'f.jsonl', line 2 {1}\r; 'f.jsonl', line 4 {2}; 'f.jsonl', line 6 {3}; ");
}

TEST(Jsonl, AnArrayIsCutIntoItsObjects) {
  const std::string braces = R"({"a": "}\\\"[{,]", "b": [{"c": {}}]})";
  EXPECT_EQ(records_of("\xef\xbb\xbf\n [\r\n  {\n\"a\": 1},\n" + braces + " , {}\n]\n\n"),
            "'f.jsonl', record 1 (line 3) {\n\"a\": 1}; 'f.jsonl', record 2 (line 5) " + braces +
                "; 'f.jsonl', record 3 (line 5) {}; ");
  EXPECT_EQ(records_of("[]"), "");
  EXPECT_EQ(records_of(" [ \n ] "), "");
}

TEST(Jsonl, ABrokenArrayIsRefusedWithItsPlace) {
  const auto refused = [](const std::string& text, const std::string& why) {
    const std::string seen = records_of(text);
    EXPECT_NE(seen.find(why), std::string::npos) << seen;
  };
  refused("[", "'f.jsonl', record 1 (line 1): expected one JSON object");
  refused("[\n5]", "'f.jsonl', record 1 (line 2): expected one JSON object");
  refused("[{},]", "record 2 (line 1): expected one JSON object");
  refused("[{},\n", "record 2 (line 2): expected one JSON object");
  refused(
      "[{}",
      "line 1: neither a comma nor ] follows record 1 of the JSON array; is the file truncated");
  refused("[{}\n{}]", "line 2: neither a comma nor ] follows record 1");
  refused("[{}] {}", "line 1: unexpected text after the end of the JSON array");
  refused("[{}]]", "line 1: unexpected text after the end of the JSON array");
  refused("[{}, {\"a\": \"}]",
          "record 2 (line 1): the object does not end within 9 bytes, the rest of");
  refused("[{\"a\": \"\\", "record 1 (line 1): the object does not end within");
}

/// A damaged line is either a document or a user error.
TEST(Jsonl, DamagedLinesAreRefusedOrRead) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a\u00e9"}], "text": "b"})";
  std::mt19937 random(20);
  int refused = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    std::string line = good;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % line.size();
      const char mutations[] = {'"', '{', '}', '[', ']', ',', ':', '\\', '\0', '\xff'};
      if (random() % 2 == 0)
        line[at] = mutations[random() % sizeof(mutations)];
      else
        line.erase(at, 1 + random() % 4);
    }
    try {
      EXPECT_FALSE(parse_jsonl(line, {file_name, 1}).segments.empty());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input) << error.what() << ", trial " << trial;
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 5000);
}

EncodedDocument encoded(const std::string& tokenizer, const std::string& line) {
  const auto opened = tokenizer::open_tokenizer(tokenizer);
  const LineNumber where{file_name, 1};
  return encode(*opened, document_tokens(*opened, with_tokenizer(tokenizer)),
                parse_jsonl(line, where), where);
}

TEST(Encoding, ThePromptEndsAtATokenBorder) {
  const auto tokenizer = tokenizer::open_tokenizer(llama2);
  const std::string line = R"({"instruction": "the heaven", "output": "and the earth"})";
  const auto document = encoded(llama2, line);
  const auto segments = parse_jsonl(line, {file_name, 1}).segments;
  Ids prompt = tokenizer->encode(segments[0].text);
  prompt.insert(prompt.begin(), 1);  // BOS
  Ids expected = prompt;
  tokenizer->encode_chunk("and the earth", tokenizer::Chunk::continuation, expected);
  EXPECT_NE(expected.size(), prompt.size());
  expected.push_back(2);  // EOS
  EXPECT_EQ(document.ids, expected);
  EXPECT_EQ(document.masked_ranges, (Edges{0, static_cast<std::int64_t>(prompt.size())}));
  // No space is inserted before the answer, although such a tokenizer puts one before a text.
  EXPECT_EQ(tokenizer->decode(std::span(document.ids).subspan(1, document.ids.size() - 2)),
            segments[0].text + "and the earth");
}

TEST(Encoding, AnEmptyAnswerIsItsEnd) {
  for (const std::string& name : {std::string("byte"), llama2, gpt2}) {
    const auto document = encoded(name, R"({"instruction": "Say nothing.", "output": ""})");
    const auto tokenizer = tokenizer::open_tokenizer(name);
    EXPECT_EQ(document.masked_ranges,
              (Edges{0, static_cast<std::int64_t>(document.ids.size()) - 1}));
    EXPECT_EQ(document.ids.back(), document_tokens(*tokenizer, with_tokenizer(name)).eos);
  }
}

TEST(Encoding, ChatsMaskAllButTheAssistant) {
  const auto document = encoded("byte", R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "a"}, {"role": "user", "content": "Q"},
      {"role": "assistant", "content": "A"}]})");
  const std::string one = "<|user|>\nq\n<|assistant|>\n", two = "<|user|>\nQ\n<|assistant|>\n";
  using namespace std::string_literals;
  const std::string text = one + "a\0"s + two + "A\0"s;
  EXPECT_EQ(document.ids, Ids(text.begin(), text.end()));
  const auto end = static_cast<std::int64_t>(one.size());
  EXPECT_EQ(document.masked_ranges, (Edges{0, end, end + 2, 2 * end + 2}));
  EXPECT_TRUE(encoded(gpt2, R"({"text": "all"})").masked_ranges.empty());
}

TEST(Encoding, DocumentsNeedAnEnd) {
  EXPECT_ERROR(encoded("byte", R"({"text": "a\u0000b"})"),
               "line 1: contains byte 0, with which the byte tokenizer ends documents");
  const tokenizer::Tokenizer* none = nullptr;
  class Endless final : public tokenizer::Tokenizer {
   public:
    Endless() : Tokenizer(tokenizer::Vocabulary{.bytes = {"a"}}) {}
    void encode_chunk(std::string_view, tokenizer::Chunk,
                      std::vector<std::int32_t>&) const override {}
    std::size_t next_cut(std::string_view text, std::size_t) const override { return text.size(); }
  } endless;
  none = &endless;
  EXPECT_ERROR(document_tokens(*none, with_tokenizer("x.json")),
               "'x.json' has no end-of-text token");
}

TEST(Encoding, ThreadsChangeNothing) {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 1800; ++i)
    text += R"({"instruction": "do )" + std::to_string(random()) + R"(", "output": ")" +
            std::string(1 + random() % 5000, 'o') + "\"}\n";
  const auto tokenizer = tokenizer::open_tokenizer("byte");
  const auto special = document_tokens(*tokenizer, with_tokenizer("byte"));
  const auto all = [&](int threads) {
    std::pair<Ids, Edges> result;
    encode_jsonl(*tokenizer, special, text, file_name, threads,
                 [&](const EncodedDocument& document, std::string_view, const LineNumber& where) {
                   result.first.insert(result.first.end(), document.ids.begin(),
                                       document.ids.end());
                   result.second.push_back(where.line);
                   result.second.push_back(document.masked_ranges.at(1));
                 });
    return result;
  };
  const auto one = all(1);
  EXPECT_EQ(one.second.size(), 3600U);
  EXPECT_EQ(all(3), one);
  text += "{\"text\": \"\"}\n{]\n";
  EXPECT_ERROR(all(1), "line 1801: 'text' is empty");
  EXPECT_ERROR(all(3),
               "line 1801: 'text' is empty");  // not line 1802, whichever thread was first
  text = R"([{"instruction": "a", "output": ""}, {"text": ""}, )";
  EXPECT_ERROR(all(3), "record 2 (line 1): 'text' is empty");  // found after later records
  text = R"([{"instruction": "a", "output": ""}, {"text": a}])";
  EXPECT_ERROR(all(1), "record 2 (line 1): not valid JSON at byte 10 of the record");
}

}  // namespace
}  // namespace llamesh::data
