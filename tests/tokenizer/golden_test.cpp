// Compares tokenizers with the reference implementations (golden/make_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "data/files.hpp"
#include "source_file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

struct Expectation {
  std::string file;
  std::string text;
  Ids ids;
  std::string decoded;
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::vector<Expectation> read_expectations() {
  std::ifstream in(test::source_file("tests/tokenizer/golden/golden.tsv"));
  std::vector<Expectation> all;
  std::string line;
  std::string text;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string name, ids, decoded, id;
    std::getline(fields, name, '\t');
    std::getline(fields, ids, '\t');
    std::getline(fields, decoded, '\t');
    if (name == "text") {
      text = from_hex(ids);
      continue;
    }
    Expectation expected{name, text, {}, decoded == "=" ? text : from_hex(decoded)};
    for (std::istringstream numbers(ids); numbers >> id;)
      expected.ids.push_back(std::stoi(id, nullptr, 36));
    all.push_back(std::move(expected));
  }
  return all;
}

std::shared_ptr<const Tokenizer> open(const std::string& file) {
  static std::map<std::string, std::shared_ptr<const Tokenizer>> opened;
  auto& tokenizer = opened[file];
  if (!tokenizer) tokenizer = open_tokenizer(test::source_file("tests/tokenizer/golden/") + file);
  return tokenizer;
}

const std::vector<Expectation>& expectations() {
  static const auto all = read_expectations();
  return all;
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream out(tokenizer);
  std::string text;
  for (const auto id : ids) text += out.push(id);
  return text + out.finish();
}

TEST(TokenizerGolden, IdsAreThoseOfTheReference) {
  ASSERT_GT(expectations().size(), 700U);
  for (const auto& e : expectations()) {
    EXPECT_EQ(open(e.file)->encode(e.text), e.ids) << e.file << ": " << e.text.substr(0, 200);
    // Again, with warm caches.
    EXPECT_EQ(open(e.file)->encode(e.text), e.ids) << e.file << ": " << e.text.substr(0, 200);
  }
}

TEST(TokenizerGolden, DecodedTextIsThatOfTheReference) {
  for (const auto& e : expectations()) {
    EXPECT_EQ(open(e.file)->decode(e.ids), e.decoded) << e.file << ": " << e.text.substr(0, 200);
    EXPECT_EQ(stream(*open(e.file), e.ids), e.decoded) << e.file << ": " << e.text.substr(0, 200);
  }
}

}  // namespace
}  // namespace llamesh::tokenizer
