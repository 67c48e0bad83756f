#include "app/commands/commands.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../data/files.hpp"
#include "app/program/options.hpp"
#include "data/token_stream.hpp"
#include "source_file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {
namespace {

using Ids = std::vector<std::int32_t>;
using test::TemporaryFolder;

const std::string llama2 = test::source_file("tests/tokenizer/golden/llama2.json");

Ids read(const std::string& file) {
  data::DataOptions options;
  options.format = data::Format::tokens;
  const std::vector<std::string> files = {file};
  const data::TokenStream stream(options, files, 1000);
  Ids ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, ids);
  return ids;
}

Ids document(const std::string& text) {
  Ids ids = tokenizer::open_tokenizer(llama2)->encode(text);
  ids.insert(ids.begin(), 1);
  ids.push_back(2);
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Tokenize, WritesDocumentsInTheOrderOfTheFiles) {
  const TemporaryFolder folder;
  const auto a = folder.write("a", "in the beginning"), b = folder.write("b", "God created");
  const auto output = folder.path("out.bin");
  EXPECT_EQ(tokenize({llama2, {b, a, b}, output, 2, ""}), 0);
  EXPECT_EQ(read(output),
            document("God created") + document("in the beginning") + document("God created"));
}

TEST(Tokenize, SeparatorsPartDocumentsAndAreNotTokens) {
  const TemporaryFolder folder;
  const auto input = folder.write("a", "<doc>one<doc><doc>two three<doc>");
  const auto output = folder.path("out.bin");
  EXPECT_EQ(tokenize({llama2, {input}, output, 1, "<doc>"}), 0);
  EXPECT_EQ(read(output), document("one") + document("two three"));
}

TEST(Tokenize, LinesOfJsonlAreDocuments) {
  const TemporaryFolder folder;
  const auto text = folder.write("a", "and the earth");
  const auto lines = folder.write(
      "b.jsonl", "{\"text\": \"God created\"}\n\n{\"id\": 2, \"text\": \"the heaven\\n\"}\n");
  const auto output = folder.path("out.bin");
  constexpr auto replace = Existing::replace;
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize({llama2, {text, lines, text}, output, 2, ""}), 0);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("every document ends with id 2 "),
            std::string::npos);
  EXPECT_EQ(read(output), document("and the earth") + document("God created") +
                              document("the heaven\n") + document("and the earth"));
  EXPECT_EQ(tokenize({"byte", {lines}, output, 1, "", replace}), 0);
  EXPECT_EQ(read(output).size(), 24U);
  EXPECT_EQ(read(output)[11], 0);  // end of a byte document
  const auto array =
      folder.write("b.json", R"([{"text": "God created"}, {"text": "the heaven\n"}])");
  EXPECT_EQ(tokenize({llama2, {array}, output, 2, "", replace}), 0);
  EXPECT_EQ(read(output), document("God created") + document("the heaven\n"));
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize({"byte", {lines, text}, output, 1, "", replace}),
            0);  // a text has no such end
  EXPECT_EQ(testing::internal::GetCapturedStdout().find("every document"), std::string::npos);
}

/// Targets of a whole stream: its ids, with ignored_target for those not in the loss.
Ids targets_of(const data::TokenStream& stream) {
  Ids ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, ids);
  stream.mask_targets(0, ids);
  return ids;
}

std::vector<std::int64_t> documents_of(const data::TokenStream& stream) {
  std::vector<std::int64_t> documents;
  for (std::int64_t at = 1; (at = stream.next_document(at, stream.size())) < stream.size(); ++at)
    documents.push_back(at);
  return documents;
}

constexpr auto conversations =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
{"text": "God created"}
{"instruction": "a", "output": "b"}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "1"},)"
    R"( {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},)"
    R"( {"role": "assistant", "content": "4"}]}
)";

TEST(Tokenize, ConversationsHaveALossMaskAndDocuments) {
  const TemporaryFolder folder;
  const auto lines = folder.write("a.jsonl", conversations);
  for (const auto loss_on :
       {data::LossOn::assistant, data::LossOn::last_assistant, data::LossOn::all}) {
    data::DataOptions options;
    options.format = data::Format::jsonl;
    options.tokenizer = llama2;
    options.chat_template = data::ChatTemplate::llama2;
    options.loss_on = loss_on;
    options.document_mask = true;
    const data::TokenStream text(options, {{lines}}, 32000);
    for (const char* name : {"out.idx", "out.bin"}) {
      TokenizeArguments arguments{llama2, {lines}, folder.path(name), 2, ""};
      arguments.existing = Existing::replace;
      arguments.chat_template = data::ChatTemplate::llama2;
      arguments.loss_on = loss_on;
      testing::internal::CaptureStdout();
      EXPECT_EQ(tokenize(arguments), 0);
      testing::internal::GetCapturedStdout();
      const bool pair = arguments.output.ends_with(".idx");
      options.format = pair ? data::Format::megatron : data::Format::tokens;
      options.eos_token = 2;
      const data::TokenStream tokens(options, {{arguments.output}}, 32000);
      EXPECT_EQ(targets_of(tokens), targets_of(text)) << name << " " << static_cast<int>(loss_on);
      if (!pair) continue;  // llama2 ends each turn with the EOS
      EXPECT_EQ(documents_of(tokens), documents_of(text));
    }
  }
}

TEST(Tokenize, DropsReasoningIfAsked) {
  const TemporaryFolder folder;
  const auto lines = folder.write("a.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}, )"
                                             R"({"role": "assistant", "content": "Ho", )"
                                             R"("thinking": "So"}]})"
                                             "\n");
  TokenizeArguments arguments{llama2, {lines}, folder.path("out.idx"), 1, ""};
  EXPECT_ERROR(tokenize(arguments), "a.jsonl', line 1: message 2 has 'thinking'");
  arguments.reasoning = data::Reasoning::drop;
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize(arguments), 0);
  testing::internal::GetCapturedStdout();
}

TEST(Tokenize, TakesFieldsWithOtherNames) {
  const TemporaryFolder folder;
  const auto lines = folder.write("a.jsonl", R"({"question": "Hi", "answer": "Ho"})"
                                             "\n");
  TokenizeArguments arguments{llama2, {lines}, folder.path("out.idx"), 1, ""};
  EXPECT_ERROR(tokenize(arguments), "it has 'answer', 'question': say in data.columns");
  arguments.columns = record_columns({"prompt=question", "completion=answer"});
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize(arguments), 0);
  const auto printed = testing::internal::GetCapturedStdout();
  EXPECT_NE(printed.find("1 document, the first is a prompt with its completion;"),
            std::string::npos)
      << printed;
  for (const auto* word : {"promt=question", "prompt", "prompt=", "=question", ""})
    EXPECT_ERROR(record_columns({word}), "expected KEY=NAME, with a key of data.columns");
}

TEST(Tokenize, RefusesWhatATokenFileCannotSay) {
  const TemporaryFolder folder;
  const auto lines =
      folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"instruction\": \"a\", \"output\": \"b\"}\n");
  const auto output = folder.path("out.bin");
  EXPECT_ERROR(tokenize({llama2, {lines}, "-", 1, ""}),
               "a.jsonl', line 2: an instruction or conversation needs a loss mask");
  const auto mask = folder.write("out.mask.npy", "");
  EXPECT_ERROR(tokenize({llama2, {lines}, output, 1, ""}), "out.mask.npy' exists");
  std::filesystem::remove(mask);
  EXPECT_ERROR(tokenize({llama2, {lines}, output, 1, "--"}), "--document-separator is for text");
  EXPECT_FALSE(std::filesystem::exists(output));
}

TEST(Tokenize, WritesTokensAndNothingElseToStandardOutput) {
  const TemporaryFolder folder;
  const auto input = folder.write("a", "God created");
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize({llama2, {input}, "-", 1, ""}), 0);
  const auto file = folder.write("ids.bin", testing::internal::GetCapturedStdout());
  EXPECT_EQ(read(file), document("God created"));
}

TEST(Tokenize, TakesFoldersPatternsAndLists) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("corpus/more"));
  folder.write("corpus/b", "b");
  folder.write("corpus/more/c", "c");
  const auto list = folder.write("list", folder.path("corpus/b") + "\n");
  const auto output = folder.path("out.bin");
  EXPECT_EQ(
      tokenize(
          {"byte", {folder.path("corpus"), "@" + list, folder.path("corpus/?")}, output, 1, ""}),
      0);
  EXPECT_EQ(read(output), (Ids{'b', 'c', 'b', 'b'}));
}

TEST(Tokenize, TakesMoreFilesThanCanBeMappedAtOnce) {
  const TemporaryFolder folder;
  std::int64_t limit = 65'530;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  const auto files = std::min<std::int64_t>(limit + 1, 200'000);
  const auto one = folder.write("a", "ab");
  std::string lines;
  for (std::int64_t i = 0; i < files; ++i) lines += one + '\n';
  const auto list = folder.write("list", lines);
  const auto output = folder.path("out.bin");
  EXPECT_EQ(tokenize({"byte", {"@" + list}, output, 1, ""}), 0);
  EXPECT_EQ(std::ssize(read(output)), 2 * files);
}

TEST(Tokenize, RefusesWhatIsNeitherTextNorRecords) {
  const TemporaryFolder folder;
  const auto text = folder.write("a", "text");
  const auto output = folder.path("out.bin");
  EXPECT_EQ(tokenize({"byte", {text}, output, 1, ""}), 0);
  EXPECT_ERROR(tokenize({"byte", {output}, folder.path("again.bin"), 1, ""}),
               "out.bin' already holds token ids; give text, .jsonl or .json");
  EXPECT_ERROR(tokenize({"byte", {folder.write("b", "\xff")}, folder.path("again.bin"), 1, ""}),
               "--input: '");
}

TEST(Tokenize, ShowsRecordsWithWhatIsInTheLoss) {
  const TemporaryFolder folder;
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi </s>"},
      {"role": "assistant", "content": "Yes\u001b[2J"}]})";
  const auto one_line = [](std::string text) {
    std::erase(text, '\n');
    return text + '\n';
  };
  const auto file = folder.write("a.jsonl", one_line(chat) + R"({"text": "b"})" + "\n{");
  TokenizeArguments arguments{llama2, {file}, "", 1, ""};
  arguments.show = 2;
  arguments.chat_template = data::ChatTemplate::zephyr;
  testing::internal::CaptureStdout();
  EXPECT_EQ(tokenize(arguments), 0);
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_EQ(shown.find("'" + file + "', line 1: "), 0U) << shown;
  EXPECT_NE(shown.find("\n<|user|>\nHi </s></s> \n<|assistant|>\n{+Yes\\x1b[2J</s>+} \n"),
            std::string::npos)
      << shown;
  EXPECT_NE(shown.find("line 2: 3 tokens, 3 in the loss\n{+<s> b</s>+}\n"), std::string::npos)
      << shown;
  arguments.show = 3;
  testing::internal::CaptureStdout();
  EXPECT_ERROR(tokenize(arguments), "line 3: not valid JSON");
  testing::internal::GetCapturedStdout();
  arguments.inputs = {folder.write("b.txt", "text")};
  EXPECT_ERROR(tokenize(arguments), "--show is for .jsonl and .json, but '");
  arguments.show = 0;
  EXPECT_ERROR(tokenize(arguments), "name the token file with --output, or print records");
}

TEST(Tokenize, LeavesTheOldFileWhenItFails) {
  const TemporaryFolder folder;
  const auto empty = folder.write("only separators", "----");
  const auto output = folder.write("out.bin", "old");
  EXPECT_ERROR(tokenize({llama2, {empty}, output, 1, "--", Existing::replace}),
               "the input holds no text");
  EXPECT_ERROR(tokenize({llama2, {empty}, output, 1, ""}), "exists; choose another name");
  EXPECT_ERROR(tokenize({llama2, {folder.path("none")}, output, 1, ""}),
               "none' cannot be opened: No such file");
  EXPECT_ERROR(tokenize({"what", {empty}, output, 1, ""}), "the tokenizer 'what' does not exist");
  EXPECT_EQ(std::filesystem::file_size(output), 3U);
  const std::filesystem::directory_iterator names(folder.path(""));
  EXPECT_EQ(std::distance(begin(names), end(names)), 2);
}

}  // namespace
}  // namespace llamesh::app
