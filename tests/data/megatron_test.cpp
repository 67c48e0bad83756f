#include "data/megatron.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "files.hpp"

namespace llamesh::data {
namespace {

using namespace std::string_literals;
using test::bytes_of;
using test::TemporaryFolder;

/// An index, field by field, so that each field can be made wrong.
struct Index {
  std::string magic = "MMIDIDX\0\0"s;
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::vector<std::int32_t> lengths = {3, 1, 0, 2, 4};
  std::vector<std::int64_t> pointers = {0, 6, 8, 8, 12};  ///< for 2-byte ids
  std::vector<std::int64_t> documents = {0, 2, 2, 3, 5};
  std::uint64_t sequences = 5;
  std::uint64_t document_count = 5;

  std::string bytes() const {
    return magic + bytes_of<std::uint64_t>({version}) + bytes_of<std::uint8_t>({type}) +
           bytes_of<std::uint64_t>({sequences, document_count}) + bytes_of(lengths) +
           bytes_of(pointers) + bytes_of(documents);
  }
};

const std::string ids16 = bytes_of<std::uint16_t>({10, 11, 12, 20, 40, 41, 50, 51, 52, 53});

class Megatron : public testing::Test {
 protected:
  std::string write(const std::string& index, const std::string& ids = ids16) const {
    // Some file systems sync a rewritten file at once.
    for (const char* file : {"c_document.idx", "c_document.bin"})
      std::filesystem::remove(folder_.path(file));
    folder_.write("c_document.idx", index);
    folder_.write("c_document.bin", ids);
    return folder_.path("c_document");
  }
  void refused(const std::string& index, const std::string& why,
               const std::string& ids = ids16) const {
    const std::string name = write(index, ids);
    const std::string text = test::error_of([&] { MegatronFile file(name); });
    EXPECT_NE(text.find(why), std::string::npos) << text;
    EXPECT_NE(text.find("c_document"), std::string::npos) << text;
  }
  TemporaryFolder folder_;
};

TEST(MegatronIndexBytes, HaveASequencePerDocument) {
  Index expected;
  expected.lengths = {3, 1, 2};
  expected.pointers = {0, 6, 8};
  expected.documents = {0, 1, 2, 3};
  expected.sequences = 3;
  expected.document_count = 4;
  EXPECT_EQ(megatron_index(expected.lengths, 2), expected.bytes());
  expected.type = 4;
  expected.pointers = {0, 12, 16};
  EXPECT_EQ(megatron_index(expected.lengths, 4), expected.bytes());
}

TEST_F(Megatron, KnowsItsIdsAndDocuments) {
  const std::string name = write(Index().bytes());
  for (const char* extension : {"", ".bin", ".idx"}) {
    const MegatronFile file(name + extension);
    EXPECT_EQ(file.path(), name + ".bin");
    ASSERT_EQ(file.ids().size(), 10);
    EXPECT_EQ(file.ids()[4], 40U);
    // Documents: sequences 0 and 1, none, none (sequence 2 is empty), 3 and 4.
    const std::vector<std::int64_t> next = {0, 4, 4, 4, 4, 10, 10, 10, 10, 10, 10};
    for (std::int64_t from = 0; from <= 10; ++from)
      EXPECT_EQ(file.next_document(from), next[static_cast<std::size_t>(from)]) << from;
  }
}

TEST_F(Megatron, ReadsTheTypesThatMegatronWrites) {
  Index index;
  index.type = 4;
  for (auto& pointer : index.pointers) pointer *= 2;
  const std::string ids = bytes_of<std::int32_t>({10, 11, 12, 20, 40, 41, 50, 51, 52, 100'000});
  const MegatronFile wide(write(index.bytes(), ids));
  EXPECT_EQ(wide.ids()[9], 100'000U);
  EXPECT_EQ(wide.next_document(1), 4);
  index.type = 1;
  for (auto& pointer : index.pointers) pointer /= 4;
  const MegatronFile narrow(write(index.bytes(), "abcdefghij"));
  EXPECT_EQ(narrow.ids()[9], unsigned{'j'});
  EXPECT_EQ(narrow.next_document(5), 10);
}

TEST_F(Megatron, FindsTheDocumentsOfARandomIndex) {
  std::mt19937 random(41);
  Index index{.lengths = {}, .pointers = {}, .documents = {0}};
  std::vector<std::int64_t> begins;
  std::int64_t size = 0;
  for (int document = 0; document < 200; ++document) {
    begins.push_back(size);
    for (auto pieces = random() % 4; pieces > 0; --pieces) {
      index.lengths.push_back(static_cast<std::int32_t>(random() % 5));
      index.pointers.push_back(size * 2);
      size += index.lengths.back();
    }
    index.documents.push_back(static_cast<std::int64_t>(index.lengths.size()));
  }
  index.sequences = index.lengths.size();
  index.document_count = index.documents.size();
  const MegatronFile file(
      write(index.bytes(), std::string(static_cast<std::size_t>(size) * 2, 'x')));
  for (std::int64_t from = 0; from <= size; ++from) {
    const auto expected = std::ranges::lower_bound(begins, from);
    EXPECT_EQ(file.next_document(from), expected == begins.end() ? size : *expected) << from;
  }
}

TEST_F(Megatron, RefusesWhatIsNoIndex) {
  const std::string good = Index().bytes();
  Index index;
  index.magic = "TNTIDX\0\0\0"s;
  refused(index.bytes(), "does not begin with MMIDIDX");
  index = {};
  index.version = 2;
  refused(index.bytes(), "version 2");
  index = {};
  for (const auto& [type, name] : {std::pair{5, "int64"}, {3, "int16"}, {6, "float64"}}) {
    index.type = static_cast<std::uint8_t>(type);
    refused(index.bytes(), "ids of type "s + name);
  }
  index.type = 9;
  refused(index.bytes(), "unknown type 9");
  for (std::size_t cut = 1; cut < good.size(); ++cut)
    refused(good.substr(0, cut), cut < 34 ? "is truncated" : "does not match its");
  refused(good + 'x', "does not match its");
  refused("", "is empty");
  folder_.write("lonely.bin", ids16);
  EXPECT_ERROR(MegatronFile(folder_.path("lonely")), "lonely.idx' cannot be opened");
  folder_.write("alone.idx", good);
  EXPECT_ERROR(MegatronFile(folder_.path("alone")), "alone.bin' cannot be opened");
}

TEST_F(Megatron, RefusesCountsThatOverflow) {
  Index index;
  for (const std::uint64_t huge : {~std::uint64_t{0}, std::uint64_t{1} << 62,
                                   std::uint64_t{1} << 61, (std::uint64_t{1} << 62) / 3}) {
    index.sequences = huge;
    refused(index.bytes(), "does not match its");
    index.sequences = 5;
    index.document_count = huge;
    refused(index.bytes(), "does not match its");
    index.document_count = 5;
  }
}

TEST_F(Megatron, RefusesSequencesThatDoNotFillTheFile) {
  const auto wrong = [&](auto change, const std::string& why) {
    Index index;
    change(index);
    refused(index.bytes(), why);
  };
  wrong([](Index& i) { i.pointers[1] = 4; },
        "sequence 1 begins at byte 4, but those before it end");
  wrong([](Index& i) { i.pointers[0] = -2; }, "sequence 0 begins at byte -2");
  wrong([](Index& i) { i.pointers[4] = std::int64_t{1} << 62; }, "sequence 4 begins at byte");
  wrong([](Index& i) { i.lengths[4] = 5; }, "sequence 4 of 5 ids is outside");
  wrong([](Index& i) { i.lengths[4] = 2'147'483'647; }, "is outside");
  wrong([](Index& i) { i.lengths[0] = -3; }, "sequence 0 of -3 ids is outside");
  wrong([](Index& i) { i.lengths[4] = 3; }, "describes 18 bytes of");
  wrong([](Index& i) { i.documents[0] = 1; }, "document 0 begins with sequence 1 of 5");
  wrong([](Index& i) { i.documents[2] = 1; }, "document 2 begins with sequence 1 of 5");
  wrong([](Index& i) { i.documents[1] = -1; }, "document 1 begins with sequence -1");
  wrong([](Index& i) { i.documents[4] = 6; }, "document 4 begins with sequence 6 of 5");
  wrong([](Index& i) { i.documents[4] = 4; }, "the documents end with sequence 4, but there are 5");
  refused(Index().bytes(), "is outside", ids16.substr(2));
  refused(Index().bytes(), "describes 20 bytes of", ids16 + "x");
}

/// A damaged index is either refused, or leads to documents within the file.
TEST_F(Megatron, DamagedIndicesAreRefusedOrRead) {
  const std::string good = Index().bytes();
  std::mt19937 random(9);
  int read = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string index = good;
    index[random() % index.size()] = static_cast<char>(random());
    const std::string name = write(index);
    try {
      const MegatronFile file(name);
      for (std::int64_t from = 0; from <= file.ids().size(); ++from) {
        EXPECT_GE(file.next_document(from), from) << "trial " << trial;
        EXPECT_LE(file.next_document(from), file.ids().size()) << "trial " << trial;
      }
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input) << error.what() << ", trial " << trial;
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace llamesh::data
