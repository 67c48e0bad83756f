#include "config/tree.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "config/inputs.hpp"
#include "config/key_writer.hpp"
#include "source_file.hpp"
#include "support.hpp"

namespace llamesh::config {
namespace {

using test::error_of;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_tree(text, "f.yaml"); });
}

TEST(Tree, RemembersLines) {
  const Node root = parse_tree("a: 1\nb:\n  c: [x, y]\n  d: null\n", "f.yaml");
  EXPECT_EQ(root.find("a")->where, "f.yaml:1");
  EXPECT_EQ(root.find("a")->scalar, "1");
  EXPECT_EQ(root.find("b")->where, "f.yaml:2");
  EXPECT_EQ(root.find("b")->find("c")->items.at(1).scalar, "y");
  EXPECT_EQ(root.find("b")->find("d")->kind, Node::Kind::null);
  EXPECT_EQ(root.find("z"), nullptr);
}

TEST(Tree, EmptyTextIsAnEmptyGroup) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n"})
    EXPECT_EQ(parse_tree(text, "f").kind, Node::Kind::map) << text;
}

TEST(Tree, RefusesWhatIsNoInput) {
  EXPECT_EQ(parse_error("a: 1\nb:\n  c: 2\n  c: 3\n"),
            "f.yaml:4: duplicate key 'c'; it is already at f.yaml:3");
  EXPECT_EQ(parse_error("a: [1, 2\nb: 3").find("f.yaml:2: not valid YAML: "), 0U);
  EXPECT_NE(parse_error("a: 1\n---\nb: 2\n").find("more than one"), std::string::npos);
  EXPECT_NE(parse_error("[a, b]: 1\n").find("f.yaml:1: a key must be a plain word"),
            std::string::npos);
  EXPECT_NE(parse_error(std::string(2'000'000, ' '))
                .find("may have at most 1048576 bytes, but this one has 2000000"),
            std::string::npos);
  EXPECT_NE(parse_error("a: &a [*a]\n").find("may have 16 levels"), std::string::npos);
  EXPECT_NE(parse_error(",run: 1\nx: 2\n").find("more than one"), std::string::npos);
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 40; ++i) bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
  EXPECT_NE(parse_error(bomb).find("check for an alias that refers to itself"), std::string::npos);
  EXPECT_NE(parse_error(std::string(100'000, '[')).find("f.yaml"), std::string::npos);
  for (const char* text : {"a: *nowhere", "a: [*.q_proj]", "a: *", "a: &"})
    EXPECT_NE(parse_error(text).find("; quote a value that begins with * or &"), std::string::npos)
        << text;
}

TEST(Tree, OverridesReplaceMergeAndCreate) {
  Node root = parse_tree("a: {b: 1, c: 2}\nd: 3\nn:\n", "f");
  apply_override(root, "a.b=7");
  apply_override(root, "a.b=8");
  apply_override(root, "x.y.z=[1, 2]");
  apply_override(root, "a={e: 5}");
  apply_override(root, "n.m=q=r");
  apply_override(root, "d=");
  EXPECT_EQ(root.find("a")->find("b")->scalar, "8");
  EXPECT_EQ(root.find("a")->find("b")->where, "command line");
  EXPECT_EQ(root.find("a")->find("c")->scalar, "2");
  EXPECT_EQ(root.find("a")->find("e")->scalar, "5");
  EXPECT_EQ(root.find("x")->find("y")->find("z")->items.size(), 2U);
  EXPECT_EQ(root.find("n")->find("m")->scalar, "q=r");
  EXPECT_EQ(root.find("d")->kind, Node::Kind::null);
}

/// Returns the node that "k=" and the text give.
Node overridden(const std::string& text) {
  Node root = parse_tree("k: before\n", "f");
  apply_override(root, "k=" + text);
  return *root.find("k");
}

TEST(Tree, OverridesAreTakenAsTheyAre) {
  for (const std::string word :
       {"w/lr #1",  "a ", " a",   "w/x: y", "&w/x", "!w",      "%w", "@list",
        "*.q_proj", "#",  "-",    "- a",    "|",    ">",       "`w", "a, b",
        "w]",       "1",  "-1.5", "true",   "?",    "a \"b\"", "\t", "null "}) {
    EXPECT_EQ(overridden(word).kind, Node::Kind::scalar) << word;
    EXPECT_EQ(overridden(word).scalar, word);
    EXPECT_EQ(overridden(word).where, "command line");
  }
}

TEST(Tree, OverridesMayBeNothingOrFlowYaml) {
  for (const char* word : {"", "~", "null", "Null", "NULL"})
    EXPECT_EQ(overridden(word).kind, Node::Kind::null) << word;
  for (const char* word : {"''", "\"\""}) {
    EXPECT_EQ(overridden(word).kind, Node::Kind::scalar) << word;
    EXPECT_EQ(overridden(word).scalar, "") << word;
  }
  EXPECT_EQ(overridden("'null'").scalar, "null");
  EXPECT_EQ(overridden("\"a\\tb #\" # c").scalar, "a\tb #");
  EXPECT_EQ(overridden("[a, \"b #\"]").kind, Node::Kind::list);
  EXPECT_EQ(overridden("{a: 1}").find("a")->scalar, "1");
}

TEST(Tree, RefusesMalformedOverrides) {
  const auto error = [](const std::string& text) {
    return error_of([&] {
      Node root = parse_tree("a: {b: 1}\n", "f");
      apply_override(root, text);
    });
  };
  EXPECT_EQ(error("train"), "command line: 'train' is not of the form key.path=value");
  EXPECT_NE(error("=3").find("is not of the form"), std::string::npos);
  EXPECT_NE(error("a..b=3").find("empty part"), std::string::npos);
  EXPECT_NE(error("a.=3").find("empty part"), std::string::npos);
  EXPECT_NE(error("a.b.c=3").find("'a.b' is '1' at f:1, not a group of keys"), std::string::npos);
  std::string deep = "a=1";
  for (int i = 0; i < 60'000; ++i) deep.insert(0, "a.");
  EXPECT_NE(error(deep).find("more than 16 levels"), std::string::npos);
  EXPECT_NE(error("a.b=[1").find("command line: a.b:1: not valid YAML"), std::string::npos);
  EXPECT_TRUE(error("a.b=[model.layers.[0-9]]").ends_with("as in [\"layers.[0-9].*\"]"));
  for (const char* text : {"a.b=[*.q_proj]", "a.b=[&]", "a.b={c: *d}"})
    EXPECT_NE(error(text).find("; quote a value that begins with * or &"), std::string::npos)
        << text << error(text);
}

TEST(Writer, WordsComeBackAsTheyWere) {
  for (const std::string word :
       {"plain", "",          "a b",         "null",    "~", "#x",   "a: b", "x\"y\\z", "-",
        "[a]",   "tab\there", "line\nbreak", "ünïcode", "'", "true", "0x1",  "*a",      "&a",
        "%",     "@",         "\x01",        "a,b",     "{", "---",  "x #y"}) {
    const Node root = parse_tree("k: " + yaml_word(word) + "\nl: [" + yaml_word(word) + "]\n", "f");
    EXPECT_EQ(root.find("k")->kind, Node::Kind::scalar) << word;
    EXPECT_EQ(root.find("k")->scalar, word);
    ASSERT_EQ(root.find("l")->items.size(), 1U) << word;
    EXPECT_EQ(root.find("l")->items[0].scalar, word);
  }
}

std::string mutated(std::string text, std::mt19937& random) {
  const std::string special = ":{}[],&*#?|-<>=!%@`\"'\n\t \\~.0eE+\xff\x80";
  const int changes = 1 + static_cast<int>(random() % 6);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = random() % text.size();
    const char c =
        random() % 2 ? special[random() % special.size()] : static_cast<char>(random() & 255U);
    switch (random() % 4) {
      case 0:
        text[at] = c;
        break;
      case 1:
        text.insert(at, 1 + random() % 3, c);
        break;
      case 2:
        text.erase(at, 1 + random() % 9);
        break;
      default:
        text.insert(random() % text.size(), text.substr(at, random() % 80));
        break;
    }
  }
  return text;
}

TEST(Inputs, MutatedFilesParseOrGiveAUserError) {
  std::ifstream file(test::source_file("inputs/tiny.yaml"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_GT(text.size(), 1000U);
  constexpr unsigned seed = 2024;
  std::mt19937 random(seed);
  int good = 0;
  int bad = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string variant = mutated(text, random);
    try {
      const Inputs inputs = parse_inputs(variant, test::source_file("inputs/tiny.yaml"));
      EXPECT_EQ(to_yaml(parse_inputs(to_yaml(inputs), "again")), to_yaml(inputs)) << variant;
      ++good;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input)
          << error.what() << "\nseed " << seed << " variant " << i << ":\n"
          << variant;
      ++bad;
    }
  }
  EXPECT_GT(good, 100);
  EXPECT_GT(bad, 100);
}

}  // namespace
}  // namespace llamesh::config
