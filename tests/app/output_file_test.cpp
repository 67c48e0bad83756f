#include "app/program/output_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

std::string refusal(const std::string& name, Existing existing) {
  return test::error_of([&] { OutputFile(name, existing); });
}

TEST(OutputFile, AnExistingFileIsReplacedOnlyIfAsked) {
  const test::TemporaryFolder folder;
  const auto name = folder.path("page.html");
  EXPECT_EQ(OutputFile(name, Existing::refuse).path(), name) << "nothing is there yet";
  folder.write("page.html", "mine");
  EXPECT_EQ(refusal(name, Existing::refuse),
            "'" + name + "' exists; choose another name, or replace the file with --force");
  EXPECT_EQ(OutputFile(name, Existing::replace).path(), name);
  EXPECT_EQ(read_file(name, 100), "mine") << "a name is checked, and nothing written";
}

TEST(OutputFile, NothingButARegularFileIsEverReplaced) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("file", "mine");
  fs::create_symlink(file, folder.path("link"));
  fs::create_symlink(folder.path("nowhere"), folder.path("dangling"));
  ASSERT_EQ(mkfifo(folder.path("fifo").c_str(), 0600), 0);
  for (const auto& [name, kind] : {std::pair(folder.path("link"), "a symbolic link"),
                                   {folder.path("dangling"), "a symbolic link"},
                                   {folder.path("fifo"), "not a regular file"},
                                   {folder.path().string(), "a folder"},
                                   {std::string("/dev/null"), "not a regular file"},
                                   {std::string("/dev/stdout"), "a symbolic link"}})
    for (const auto existing : {Existing::refuse, Existing::replace})
      EXPECT_NE(refusal(name, existing).find("is " + std::string(kind) + ", so it will not be"),
                std::string::npos)
          << name;
}

TEST(OutputFile, AMissingFolderIsNamed) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(refusal(folder.path("none/page.html"), Existing::refuse),
            "'" + folder.path("none/page.html") + "': the folder " + folder.path("none") +
                " does not exist; create it first");
}

TEST(OutputFile, AHyphenIsStandardOutput) {
  const std::string text(3 << 20, 'x');  // more than one copy chunk
  fs::path temporary;
  testing::internal::CaptureStdout();
  {
    const OutputFile output("-", Existing::refuse);
    EXPECT_TRUE(output.is_stdout());
    temporary = output.path();
    write_durably(temporary, text);
    output.finish();
  }
  EXPECT_TRUE(testing::internal::GetCapturedStdout() == text);
  EXPECT_FALSE(fs::exists(temporary.parent_path()));
  EXPECT_FALSE(fs::exists("-"));
}

}  // namespace
}  // namespace llamesh::app
