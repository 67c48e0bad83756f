#include "app/tokenize.hpp"

#include <gtest/gtest.h>

#include "../data/files.hpp"
#include "data/token_stream.hpp"
#include "data/tokenizer.hpp"

namespace llamesh::app {
namespace {

using Ids = std::vector<std::int32_t>;
using test::TemporaryFolder;

const std::string llama2 = LLAMESH_GOLDEN "/llama2.json";

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
  Ids ids = data::open_tokenizer(llama2)->encode(text);
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

TEST(Tokenize, LeavesTheOldFileWhenItFails) {
  const TemporaryFolder folder;
  const auto empty = folder.write("only separators", "----");
  const auto output = folder.write("out.bin", "old");
  EXPECT_ERROR(tokenize({llama2, {empty}, output, 1, "--"}), "the input holds no text");
  EXPECT_ERROR(tokenize({llama2, {folder.path("none")}, output, 1, ""}), "there is no file");
  EXPECT_ERROR(tokenize({"what", {empty}, output, 1, ""}), "tokenizer 'what' is not known");
  EXPECT_EQ(std::filesystem::file_size(output), 3U);
  const std::filesystem::directory_iterator names(folder.path(""));
  EXPECT_EQ(std::distance(begin(names), end(names)), 2);
}

}  // namespace
}  // namespace llamesh::app
