#include "data/data_files.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "hostile_files.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class FilePatterns : public testing::Test {
 protected:
  void make(const std::string& name) {
    fs::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, "x");
  }
  void link(const std::string& target, const std::string& name) {
    fs::create_symlink(target, folder_.path() / name);
  }
  /// Matches a pattern below the folder.
  Names match(const std::string& pattern) {
    Names names;
    for (const auto& file : matching_files(folder_.path(pattern), Format::text))
      names.push_back(fs::path(file).lexically_relative(folder_.path()).string());
    return names;
  }
  test::TimeLimit limit_{20};
  test::TemporaryFolder folder_;
};

TEST_F(FilePatterns, MatchThroughFolders) {
  for (const char* name :
       {"b/x1.txt", "a/x2.txt", "a/x10.txt", "a/deep/x.txt", "a/.x.txt", "x.txt"})
    make(name);
  EXPECT_EQ(match("*/x*.txt"), (Names{"a/x10.txt", "a/x2.txt", "b/x1.txt"}));
  EXPECT_EQ(match("[a]/*/x.txt"), Names{"a/deep/x.txt"});
  EXPECT_EQ(match("*/deep/x.txt"), Names{"a/deep/x.txt"});
  EXPECT_EQ(match("?/deep/../x2.t*"), Names{"a/deep/../x2.txt"});
}

TEST_F(FilePatterns, FollowALoopOfLinksOnceAtEachDepth) {
  make("loop/x.txt");
  for (char c = 'a'; c <= 'j'; ++c) link(".", std::string("loop/") + c);
  EXPECT_EQ(match("loop/*/*/*/*/*/*/*/*/*/*/*/*/x.txt"),
            Names{"loop/a/a/a/a/a/a/a/a/a/a/a/a/x.txt"});
  EXPECT_EQ(match("loop/*/*/*/*/*/*/*/*/*/*/*/*/x*"), Names{"loop/a/a/a/a/a/a/a/a/a/a/a/a/x.txt"});
}

TEST_F(FilePatterns, TakeAFolderOfSeveralNamesByTheFirstOfThem) {
  make("data/today/x.txt");
  make("data/yesterday/x.txt");
  link("today", "data/latest");
  link("nowhere", "data/dangling");
  link("self", "data/self");
  for (const char* last : {"x.txt", "*.txt"})
    EXPECT_EQ(match(std::string("data/*/") + last),
              (Names{"data/latest/x.txt", "data/yesterday/x.txt"}));
}

TEST_F(FilePatterns, ThatLeadNowhereOrAreNoPathAreErrors) {
  make("a/x.txt");
  EXPECT_NE(test::error_of([&] { match("none/*.txt"); }).find("none cannot be read: No such file"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { match("*/none"); }).find("no file matches '"), std::string::npos);
  std::string endless = "*";
  for (int i = 0; i < 100'000; ++i) endless += "/*";
  EXPECT_NE(test::error_of([&] { match(endless); }).find("at most 4095"), std::string::npos);
}

}  // namespace
}  // namespace llamesh::data
