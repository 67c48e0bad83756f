#include "data/loss_mask.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "data/encode_jsonl.hpp"
#include "data/numpy_array.hpp"
#include "data/token_file.hpp"
#include "data/training_data.hpp"
#include "files.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

const std::string numpy_files =
    test::source_file("tests/data/golden");  // made by NumPy: make_numpy_golden.py

DataOptions options_of(Format format) {
  DataOptions options;
  options.format = format;
  return options;
}

Ids ids_in(const std::string& file, TokenDtype stated = TokenDtype::from_header) {
  const MappedFile mapped(file);
  const auto ids = ids_of_token_file(mapped.bytes(), file, stated);
  Ids wide(static_cast<std::size_t>(ids.size()));
  ids.widen(0, wide);
  return wide;
}

TEST(NumpyArray, HoldsTokenIds) {
  const Ids expected = {3, 1, 65535, 7, 0};
  EXPECT_EQ(ids_in(numpy_files + "/numpy_uint16.npy"), expected);
  EXPECT_EQ(ids_in(numpy_files + "/numpy_uint16.npy", TokenDtype::uint16), expected);
  EXPECT_EQ(ids_in(numpy_files + "/numpy_int32.npy"), expected);
  EXPECT_ERROR(
      ids_in(numpy_files + "/numpy_uint16.npy", TokenDtype::uint32),
      "has dtype <u2, but uint32 was given; leave that out (data.token_dtype, --token-dtype)");
  EXPECT_ERROR(ids_in(numpy_files + "/numpy_int64.npy"), "has dtype <i8; save its ids as uint16");
  EXPECT_ERROR(ids_in(numpy_files + "/numpy_2d.npy"),
               "shape (2, 5); save one with a single dimension");
}

TEST(NumpyArray, IsRefusedIfItIsCut) {
  const TemporaryFolder folder;
  const MappedFile whole(numpy_files + "/numpy_uint16.npy");
  for (std::size_t bytes = 7; bytes < whole.bytes().size(); ++bytes) {
    const auto file =
        folder.write("cut.npy", {reinterpret_cast<const char*>(whole.bytes().data()), bytes});
    EXPECT_ERROR(ids_in(file), "cut.npy'") << bytes;
    fs::remove(file);
  }
}

TEST(LossMask, LiesBesideItsTokens) {
  EXPECT_EQ(loss_mask_path("a/chats.bin"), "a/chats.mask.npy");
  EXPECT_EQ(loss_mask_path("chats.npy"), "chats.mask.npy");
  EXPECT_EQ(loss_mask_path("chats.idx"), "chats.mask.npy");
  EXPECT_EQ(loss_mask_path("ids.u16"), "ids.u16.mask.npy");
  EXPECT_TRUE(is_loss_mask("chats.mask.npy"));
  EXPECT_FALSE(is_loss_mask("chats.npy"));
}

/// Five tokens beside which each test puts a mask.
class MaskedTokens : public testing::Test {
 protected:
  MaskedTokens() { fs::copy_file(numpy_files + "/numpy_uint16.npy", tokens_); }
  Ids targets() const {
    const TokenStream stream(options_, {{tokens_}}, 65536);
    Ids targets(3, 9);
    stream.mask_targets(1, targets);
    return targets;
  }
  TemporaryFolder folder_;
  std::string tokens_ = folder_.path("a.npy"), mask_ = folder_.path("a.mask.npy");
  DataOptions options_ = options_of(Format::tokens);
};

TEST_F(MaskedTokens, CountAsTheMaskSays) {
  EXPECT_EQ(targets(), (Ids{9, 9, 9}));
  for (const char* kind : {"bool", "uint8"}) {
    fs::copy_file(numpy_files + "/numpy_" + kind + ".npy", mask_,
                  fs::copy_options::overwrite_existing);
    EXPECT_EQ(targets(), (Ids{9, 9, 9})) << kind;  // tokens 1 to 3 are odd
    options_.eos_token = 0;
    const TokenStream stream(options_, {{tokens_}}, 65536);
    Ids last(1, 9);
    stream.mask_targets(4, last);
    EXPECT_EQ(last, (Ids{ignored_target}));
  }
  folder_.write("a.mask.npy", std::string("\0\0\1\0\1", 5));  // without a header
  EXPECT_EQ(targets(), (Ids{ignored_target, 9, ignored_target}));
}

TEST_F(MaskedTokens, RefuseAnotherLengthDtypeAndValue) {
  folder_.write("a.mask.npy", std::string(4, '\1'));
  EXPECT_ERROR(targets(), "a.mask.npy' is for 4 tokens, but '" + tokens_ + "' has 5");
  fs::copy_file(numpy_files + "/numpy_int32.npy", mask_, fs::copy_options::overwrite_existing);
  EXPECT_ERROR(targets(), "has dtype <i4; save it as bool or uint8");
  folder_.write("a.mask.npy", numpy_header("|u1", 6) + std::string(5, '\1'));
  EXPECT_ERROR(targets(), "has 5 bytes after its header, which promises 6");
  folder_.write("a.mask.npy", std::string("\0\1\7\0\1", 5));
  EXPECT_ERROR(targets(), "a.mask.npy' has 7 for token 2; it must be 0 or 1");
  folder_.write("a.mask.npy", std::string(5, '\1'));
  EXPECT_ERROR(TokenStream(options_, {{mask_}}, 65536), "is a loss mask; name the token file");
}

TEST_F(MaskedTokens, HaveAFingerprintOfTheirMask) {
  const auto hash = [&] {
    const TokenStream stream(options_, {{tokens_}}, 65536);
    return stream.file_fingerprints(1 << 20).front().hash;
  };
  const auto without = hash();
  folder_.write("a.mask.npy", std::string(5, '\1'));
  const auto all = hash();
  folder_.write("a.mask.npy", std::string("\1\1\1\1\0", 5));
  EXPECT_NE(all, without);
  EXPECT_NE(hash(), all);
}

TEST_F(MaskedTokens, CrossFiles) {
  fs::copy_file(tokens_, folder_.path("b.npy"));
  folder_.write("b.mask.npy", std::string("\0\1\1\1\0", 5));
  const TokenStream stream(options_, {{tokens_, folder_.path("b.npy"), tokens_}}, 65536);
  EXPECT_EQ(stream.masked_files(), 1U);
  Ids targets(12, 9);
  stream.mask_targets(1, targets);
  Ids expected(12, 9);
  expected[4] = expected[8] = ignored_target;
  EXPECT_EQ(targets, expected);
}

TEST(LossMaskWriter, WritesWhatNumpyWrites) {
  const TemporaryFolder folder;
  LossMaskWriter mask(folder.path("a.bin"));
  mask.mask(4, 5);  // [3, 1, 65535, 7, 0] are odd but for the last
  mask.commit(5);
  const auto bytes = [](const std::string& file) {
    const MappedFile mapped(file);
    return std::vector<std::uint8_t>(mapped.bytes().begin(), mapped.bytes().end());
  };
  EXPECT_EQ(bytes(folder.path("a.mask.npy")), bytes(numpy_files + "/numpy_uint8.npy"));
}

TEST(LossMaskWriter, LeavesNoFileWithoutMaskedTokens) {
  const TemporaryFolder folder;
  const auto old = folder.write("a.mask.npy", "old");
  LossMaskWriter(folder.path("a.bin")).commit(5);
  EXPECT_FALSE(fs::exists(old));
  { LossMaskWriter(folder.path("a.bin")).mask(0, 2); }
  EXPECT_TRUE(fs::is_empty(folder.path("")));
}

TEST(TokenFile, PromisesItsMask) {
  const TemporaryFolder folder;
  const auto path = folder.path("a.bin");
  TokenFileWriter file(path, 256);
  const std::vector<std::int64_t> masked = {0, 2};
  file.append(Ids{1, 2, 3}, masked);
  file.append(Ids{4});
  file.append(Ids{5, 6, 7}, masked);
  file.commit();
  const auto options = options_of(Format::tokens);
  {
    const TokenStream stream(options, {{path}}, 256);
    Ids targets(7, 9);
    stream.mask_targets(0, targets);
    EXPECT_EQ(targets, (Ids{-1, -1, 9, 9, -1, -1, 9}));
  }
  fs::remove(folder.path("a.mask.npy"));
  EXPECT_ERROR(TokenStream(options, {{path}}, 256),
               "was written with a loss mask, but '" + folder.path("a.mask.npy") + "' is missing");
}

TEST(TokenFile, OfAPairRecordsDocuments) {
  const TemporaryFolder folder;
  TokenFileWriter file(folder.path("a.idx"), 256);
  file.append(Ids{1, 2, 3});
  file.end_document();
  file.end_document();  // empty documents are none
  file.append(Ids{4, 5});
  file.append(Ids{6});
  file.end_document();
  file.commit();
  auto options = options_of(Format::megatron);
  options.document_mask = true;
  const TokenStream stream(options, {{folder.path("a")}}, 256);
  Ids ids(6);
  stream.read(0, ids);
  EXPECT_EQ(ids, (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(stream.next_document(1, 6), 3);
  EXPECT_EQ(stream.next_document(4, 6), 6);
}

}  // namespace
}  // namespace llamesh::data
