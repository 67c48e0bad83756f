#include "data/data_files.hpp"

#include <filesystem>

#include "data/token_ids.hpp"
#include "files.hpp"

namespace llamesh::data {
namespace {

/// A fixture that writes files in all formats.
class FileFormat : public testing::Test {
 protected:
  Format format(const std::string& name, const std::string& bytes,
                TokenDtype ids = TokenDtype::from_header) {
    return format_of(folder_.write(name, bytes), ids);
  }
  static std::string token_file() {
    const auto header = token_header(2, 1);
    return test::bytes_of(std::vector<std::int32_t>(header.begin(), header.end())) + "ab";
  }
  const test::TemporaryFolder folder_;
};

TEST_F(FileFormat, IsByNameAndFirstBytes) {
  EXPECT_EQ(format("a.txt", "In the beginning"), Format::text);
  EXPECT_EQ(format("a", "{\"text\": 1}"), Format::text);
  EXPECT_EQ(format("a.json", "[{}]"), Format::jsonl);
  EXPECT_EQ(format("a.jsonl", "{}"), Format::jsonl);
  EXPECT_EQ(format("a.bin", token_file()), Format::tokens);
  EXPECT_EQ(format("named.txt", token_file()), Format::tokens);
  EXPECT_EQ(format("raw.bin", "abcd", TokenDtype::uint16), Format::tokens);
  EXPECT_EQ(format("raw.jsonl", "{}", TokenDtype::uint16), Format::jsonl);
  folder_.write("pair.idx", std::string("MMIDIDX\0\0", 9) + "rest");
  for (const char* name : {"pair", "pair.idx", "pair.bin"})
    EXPECT_EQ(format_of(folder_.path(name), TokenDtype::from_header), Format::megatron) << name;
}

TEST_F(FileFormat, OfTextIsUtf8) {
  const std::string nearly_all((64 << 10) - 1, 'a');
  EXPECT_EQ(format("cut.txt", nearly_all + "\u00e9\u00e9"), Format::text) << "cut by the sample";
  EXPECT_ERROR(format("end.txt", nearly_all + "\xc3"), "(byte 65535 is 0xc3)");
  EXPECT_ERROR(format("nul.txt", std::string("ab\0d", 4)), "(byte 2 is 0x00)");
  EXPECT_ERROR(format("latin1.txt", "caf\xe9 au lait"), "is not UTF-8 text (byte 3 is 0xe9)");
  EXPECT_ERROR(format("latin1.txt", "caf\xe9 au lait"), "iconv -f ISO-8859-1 -t UTF-8 ");
  EXPECT_ERROR(format("ids", "caf\xe9\x01"), "data.token_dtype");
  EXPECT_ERROR(format("my.bin", "\x91\x02"), "data.token_dtype");
  EXPECT_ERROR(format("my.bin", "plain"), "is named as a token file");
  EXPECT_ERROR(format("a.txt.gz", "\x1f\x8b\x08"), "compressed by gzip; decompress it");
  EXPECT_ERROR(format("a.parquet", std::string("PAR1\0", 5)), "is a Parquet file; make JSON lines");
  EXPECT_ERROR(format("a b.parquet", std::string("PAR1\0", 5)), "/a b.jsonl'");
  EXPECT_ERROR(format("a.arrow", "\xff\xff\xff\xff"), "is an Arrow file; make JSON lines");
  EXPECT_ERROR(format("a.txt", std::string("\xff\xfe"
                                           "a\0",
                                           4)),
               "looks like UTF-16");
  EXPECT_ERROR(format("a.txt", ""), "a.txt' is empty");
  EXPECT_ERROR(format_of(folder_.path("none"), TokenDtype::from_header), "none' cannot be opened");
}

TEST_F(FileFormat, OfANameOnTheHubIsAUserError) {
  const auto of = [](const char* name) { return format_of(name, TokenDtype::from_header); };
  EXPECT_ERROR(of("HuggingFaceH4/ultrachat_200k"), "dataset on the Hugging Face Hub, make JSON");
  EXPECT_ERROR(of("HuggingFaceH4/ultrachat_200k"), "/ultrachat_200k ultrachat_200k.jsonl");
  for (const char* name : {"/none/there", "none/there/deep", "./none", "none", "a b/c"})
    EXPECT_ERROR(of(name), "cannot be opened");
}

TEST_F(FileFormat, OfAllFilesIsOne) {
  const std::vector<std::string> same{folder_.write("a.txt", "a"), folder_.write("b", "b")};
  EXPECT_EQ(format_of(same, TokenDtype::from_header), Format::text);
  const std::vector<std::string> mixed{same[0], folder_.write("c.json", "[]")};
  EXPECT_ERROR(format_of(mixed, TokenDtype::from_header),
               "c.json' holds JSON records; all files of a");
}

TEST_F(FileFormat, ThatIsSaidToBeTextIsChecked) {
  EXPECT_NO_THROW(check_text(folder_.write("a", "{}")));
  EXPECT_ERROR(check_text(folder_.write("a.json", "{}")), "is named as JSON records");
  EXPECT_ERROR(check_text(folder_.write("ids", token_file())), "holds token ids");
  EXPECT_ERROR(check_text(folder_.write("b", "\xff")), "is not UTF-8 text");
}

}  // namespace
}  // namespace llamesh::data
