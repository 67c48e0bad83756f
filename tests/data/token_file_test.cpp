#include "data/token_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "files.hpp"

namespace llamesh::data {
namespace {

using test::TemporaryFolder;

TEST(TokenFile, AppearsWhenItIsComplete) {
  const TemporaryFolder folder;
  const auto names = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path("")), {});
  };
  for (const int vocabulary : {65536, 65537}) {
    const std::string path = folder.path(std::to_string(vocabulary));
    TokenFileWriter file(path, vocabulary);
    file.append(std::vector<std::int32_t>{1, 65535});
    file.append(std::vector<std::int32_t>{7});
    EXPECT_FALSE(std::filesystem::exists(path));
    file.commit();
    const bool wide = vocabulary > 65536;
    EXPECT_EQ(std::filesystem::file_size(path), 1024U + (wide ? 12U : 6U));
    EXPECT_EQ(file.bits(), wide ? 32 : 16);
  }
  { const TokenFileWriter never(folder.path("never"), 256); }
  EXPECT_EQ(names(), 2);
  TokenFileWriter empty(folder.path("empty"), 256);
  EXPECT_ERROR(empty.commit(), "the input holds no text");
  try {
    TokenFileWriter(folder.path("no/where"), 256);
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure) << error.what();
  }
}

}  // namespace
}  // namespace llamesh::data
