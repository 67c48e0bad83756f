#include "data/token_stream.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "files.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

using test::bytes_of;
using test::header;
using test::TemporaryFolder;

constexpr std::int64_t vocabulary = 70'000;

std::vector<std::int32_t> read(const TokenStream& stream, std::int64_t begin, std::int64_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count), -7);
  stream.read(begin, out);
  return out;
}

TokenStream open(const std::vector<std::string>& files, Format format = Format::text,
                 TokenDtype dtype = TokenDtype::from_header, std::int64_t vocab = vocabulary) {
  DataOptions options;
  options.format = format;
  options.token_dtype = dtype;
  return TokenStream(options, files, vocab);
}
TokenStream open_tokens(const std::string& file, TokenDtype dtype = TokenDtype::from_header,
                        std::int64_t vocab = vocabulary) {
  return open({file}, Format::tokens, dtype, vocab);
}

TEST(TokenStream, TextFilesFollowOneAnotherByteByByte) {
  const TemporaryFolder folder;
  std::mt19937 random(7);
  std::string all;
  std::vector<std::string> files;
  for (const int size : {1, 300, 2, 4097}) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(random() & 255U);
    files.push_back(folder.write(std::to_string(files.size()), bytes));
    all += bytes;
  }
  const TokenStream stream = open(files, Format::text, TokenDtype::from_header, 256);
  ASSERT_EQ(stream.size(), static_cast<std::int64_t>(all.size()));
  for (int trial = 0; trial < 200; ++trial) {
    const auto begin = random() % all.size();
    const auto count = random() % (all.size() - begin + 1);
    const auto tokens =
        read(stream, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(tokens[i], static_cast<unsigned char>(all[begin + i])) << begin << " + " << i;
  }
}

TEST(TokenStream, ReadsBothHeadersAndHeaderlessFiles) {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> small = {0, 1, 50256, 65535, 9};
  const std::vector<std::uint32_t> large = {0, 69'999, 65'536, 3};
  const std::vector<std::int32_t> small_ids(small.begin(), small.end());
  const std::vector<std::int32_t> large_ids(large.begin(), large.end());
  const auto gpt2 = folder.write("gpt2", header(20240520, 1, 5) + bytes_of(small));
  const auto llama = folder.write("llama", header(20240801, 7, 4) + bytes_of(large));
  EXPECT_EQ(read(open_tokens(gpt2), 0, 5), small_ids);
  EXPECT_EQ(read(open_tokens(gpt2, TokenDtype::uint16), 0, 5), small_ids);
  EXPECT_EQ(read(open_tokens(llama), 0, 4), large_ids);
  const auto raw16 = folder.write("raw16", bytes_of(small));
  const auto raw32 = folder.write("raw32", bytes_of(large));
  EXPECT_EQ(read(open_tokens(raw16, TokenDtype::uint16), 1, 4),
            (std::vector<std::int32_t>{1, 50256, 65535, 9}));
  EXPECT_EQ(read(open_tokens(raw32, TokenDtype::uint32), 0, 4), large_ids);
  // Across the boundary between files with different id sizes.
  const TokenStream both = open({gpt2, llama}, Format::tokens);
  EXPECT_EQ(both.size(), 9);
  EXPECT_EQ(read(both, 3, 4), (std::vector<std::int32_t>{65535, 9, 0, 69'999}));
}

TEST(TokenStream, NamesTheTokenThatIsOutsideTheVocabulary) {
  const TemporaryFolder folder;
  const auto file = folder.write("ids", bytes_of(std::vector<std::uint32_t>{1, 2, 99, 100, 3}));
  const TokenStream stream = open_tokens(file, TokenDtype::uint32, 100);
  EXPECT_EQ(read(stream, 0, 3), (std::vector<std::int32_t>{1, 2, 99}));
  EXPECT_ERROR(read(stream, 1, 4),
               "token 3 of '" + file +
                   "' has id 100, but model.vocab_size is 100; the file was made with another "
                   "tokenizer, or its dtype (data.token_dtype, --token-dtype) is wrong");
  const auto huge = folder.write("huge", bytes_of(std::vector<std::uint32_t>{1, 0xfffffff0U}));
  EXPECT_ERROR(read(open_tokens(huge, TokenDtype::uint32), 0, 2), "token 1 of");
  EXPECT_ERROR(read(open_tokens(huge, TokenDtype::uint32), 0, 2), "4294967280");
  EXPECT_ERROR(open({file}, Format::text, TokenDtype::from_header, 255), "model.vocab_size is 255");
}

TEST(TokenStream, RefusesWhatIsNoDataFile) {
  const TemporaryFolder folder;
  EXPECT_ERROR(open({}), "no data files");
  EXPECT_ERROR(open({folder.path("missing")}),
               folder.path("missing") + "' cannot be opened: No such");
  EXPECT_ERROR(open({folder.path("")}), "is a folder");
  EXPECT_ERROR(open({folder.write("empty", "")}), "empty' is empty");
  ::mkfifo(folder.path("pipe").c_str(), 0600);
  EXPECT_ERROR(open({folder.path("pipe")}), "not a regular file");
}

TEST(TokenStream, RefusesAnUnreadableFile) {
  const TemporaryFolder folder;
  const auto file = folder.write("secret", "abc");
  ::chmod(file.c_str(), 0000);
  const bool root = ::geteuid() == 0;
  if (root) {  // root may read everything
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const std::string text = test::error_of([&] { open({file}); });
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_NE(text.find("Permission denied"), std::string::npos) << text;
}

TEST(TokenStream, RefusesMalformedTokenFiles) {
  const TemporaryFolder folder;
  const std::string ids = bytes_of(std::vector<std::uint16_t>{1, 2, 3});
  const auto bad = [&](const std::string& bytes, TokenDtype dtype = TokenDtype::from_header) {
    return open_tokens(folder.write("bad", bytes), dtype);
  };
  EXPECT_ERROR(bad(header(20240520, 1, 3).substr(0, 1000)),
               "1000 bytes, but its header alone has 1024");
  EXPECT_ERROR(bad(header(20240520, 1, 4) + ids), "truncated: its header promises 4 tokens");
  EXPECT_ERROR(bad(header(20240520, 1, 3) + ids.substr(1)),
               "which makes 1030 bytes, but it has 1029");
  EXPECT_ERROR(bad(header(20240520, 1, 2) + ids), "too long");
  EXPECT_ERROR(bad(header(20240520, 2, 3) + ids), "version 2");
  EXPECT_ERROR(bad(header(20240801, 1, 3) + ids), "only version 7 is supported");
  EXPECT_ERROR(bad(header(20240520, 1, 0)), "promises 0 tokens");
  EXPECT_ERROR(bad(header(20240520, 1, -3) + ids), "promises -3 tokens");
  EXPECT_ERROR(
      bad(header(20240520, 1, 3) + ids, TokenDtype::uint32),
      "holds uint16 by its header, but uint32 was given; leave that out (data.token_dtype, "
      "--token-dtype)");
  EXPECT_ERROR(bad(ids), "does not begin with llm.c's header");
  EXPECT_ERROR(bad(ids.substr(1), TokenDtype::uint16),
               "5 bytes, which is not a multiple of 2-byte ids; it is truncated, or its dtype "
               "(data.token_dtype, --token-dtype) is wrong");
  EXPECT_ERROR(bad(ids, TokenDtype::uint32), "6 bytes, which is not a multiple of 4-byte");
}

/// If a file is truncated while it is read, the missing part must not be taken for tokens.
TEST(TokenStream, AFileThatIsCutOffIsAnError) {
  constexpr std::int64_t size = 1 << 20;
  const TemporaryFolder folder;
  const auto path = folder.write("text", std::string(size, 'a'));
  const auto other = folder.write("other", "whole");
  const TokenStream stream = open({path, other}, Format::text, TokenDtype::from_header, 256);
  ASSERT_EQ(::truncate(path.c_str(), size / 2), 0);
  EXPECT_EQ(read(stream, 100, 1).front(), 'a');
  EXPECT_EQ(read(stream, size, 5).front(), 'w');
  for (const std::int64_t at : {size / 2 + 5000, size - 1, std::int64_t{100}}) {
    EXPECT_ERROR(read(stream, at, 1), path);
    EXPECT_ERROR(read(stream, at, 1), "had 1048576 bytes and has 524288 now");
  }
  EXPECT_EQ(read(stream, size, 5).front(), 'w');
}

/// A new file's pages may be mapped where a truncated one's were.
TEST(TokenStream, AFileThatWasCutOffLeavesNothingToTheNext) {
  const TemporaryFolder folder;
  for (int i = 0; i < 3; ++i) {
    const auto path = folder.write("text", std::string(100'000, 'a'));
    const TokenStream stream = open({path}, Format::text, TokenDtype::from_header, 256);
    EXPECT_EQ(read(stream, 99'999, 1).front(), 'a');
    ASSERT_EQ(::truncate(path.c_str(), 10), 0);
    EXPECT_ERROR(read(stream, 50'000, 1), "from 49152 on");
  }
}

TEST(TokenStream, TextHasThePrefixAndSuffixTokensOfItsTokenizer) {
  const TemporaryFolder folder;
  DataOptions options;
  options.tokenizer = test::source_file("tests/tokenizer/golden/llama2.json");
  const std::vector<std::string> names = {folder.write("a", "the heaven"),
                                          folder.write("b", "and")};
  const auto tokenizer = tokenizer::open_tokenizer(options.tokenizer);
  std::vector<std::int32_t> expected;
  for (const char* text : {"the heaven", "and"}) {
    expected.push_back(1);
    for (const auto id : tokenizer->encode(text)) expected.push_back(id);
    expected.push_back(2);
  }
  const TokenStream stream(options, names, tokenizer->vocab_size());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, ids);
  EXPECT_EQ(ids, expected);
  EXPECT_ERROR(TokenStream(options, names, tokenizer->vocab_size() - 1), "model.vocab_size is 899");
}

}  // namespace
}  // namespace llamesh::data
