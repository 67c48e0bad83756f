#include "data/data_files.hpp"

#include <filesystem>

#include "files.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A data folder with a folder below it.
class DataFiles : public testing::Test {
 protected:
  DataFiles() {
    fs::create_directories(folder_.path() / "corpus/more/.hidden");
    for (const char* name : {"b2.txt", "b10.txt", ".b.txt", "more/a.txt", "more/.hidden/c.txt"})
      folder_.write(std::string("corpus/") + name, "x");
  }
  /// Returns the files named by a word, in which $ is the folder; without the folder.
  Names find(std::string word, Format format = Format::automatic) {
    for (std::size_t at = 0; (at = word.find('$', at)) != word.npos;)
      word.replace(at, 1, folder_.path().string());
    Names names;
    const auto found = find_data_files(word, format);
    for (const auto& file : found.files)
      names.push_back(fs::path(file).lexically_relative(folder_.path()).string());
    note_ = found.note;
    return names;
  }
  const test::TemporaryFolder folder_;
  std::string note_;
};

TEST_F(DataFiles, LossMasksBelongToTheirTokens) {
  folder_.write("corpus/c.npy", "x");
  folder_.write("corpus/c.mask.npy", "x");
  for (const char* word : {"$/corpus/*.npy", "$/corpus/c*"})
    EXPECT_EQ(find(word), Names{"corpus/c.npy"}) << word;
  EXPECT_EQ(find("$/corpus").size(), 4U);
  EXPECT_EQ(find("$/corpus/c.mask.npy"), Names{"corpus/c.mask.npy"}) << "its reader refuses it";
  EXPECT_ERROR(find("$/corpus/*.mask.npy"), "matches only loss masks; name the token files");
}

TEST_F(DataFiles, OfAFolderAreAllBelowItSorted) {
  const Names all{"corpus/b10.txt", "corpus/b2.txt", "corpus/more/a.txt"};
  EXPECT_EQ(find("$/corpus"), all);
  const auto corpus = folder_.path("corpus");
  EXPECT_EQ(note_,
            fmt::format("'{0}' is a folder of 3 files, '{0}/b10.txt' to '{0}/more/a.txt'", corpus));
  EXPECT_EQ(find("$/corpus/"), (Names{"corpus/b10.txt", "corpus/b2.txt", "corpus/more/a.txt"}));
  EXPECT_EQ(find("$/corpus/*"), all) << "a pattern may match a folder";
  EXPECT_EQ(find("$/corpus/b2.txt"), Names{"corpus/b2.txt"});
  EXPECT_EQ(note_, "");
}

TEST_F(DataFiles, OfAFolderWithLoopsAreFoundOnce) {
  fs::create_directory_symlink(folder_.path("corpus"), folder_.path("corpus/more/up"));
  fs::create_directory_symlink(folder_.path("corpus/more"), folder_.path("corpus/again"));
  fs::create_symlink(folder_.path("nowhere"), folder_.path("corpus/broken"));
  EXPECT_EQ(find("$/corpus").size(), 3U);
}

TEST_F(DataFiles, OfAListAreThoseOfItsLines) {
  const auto list = folder_.write(
      "list", fmt::format("# b\n{0}/corpus/b2.txt\r\n\n{0}/corpus/more\n{0}/corpus/b1*",
                          folder_.path().string()));
  EXPECT_EQ(find("@$/list"), (Names{"corpus/b2.txt", "corpus/more/a.txt", "corpus/b10.txt"}));
  EXPECT_NE(note_.find("is a list of 3 files, "), std::string::npos);
  folder_.write("list", "\n" + folder_.path("none*") + "\n");
  EXPECT_ERROR(find("@$/list"), "/list', line 2: no file matches '");
  folder_.write("list", "# a text, not a list\nIn the beginning\n");
  EXPECT_ERROR(find("@$/list"), "/list', line 2: 'In the beginning' does not exist");
  folder_.write("list", "\n\n");
  EXPECT_ERROR(find("@$/list"), "/list' names no file");
  EXPECT_ERROR(find("@$/none"), "/none' cannot be opened: No such file");
}

TEST_F(DataFiles, OfMegatronPairsAreNamedOnce) {
  fs::create_directory(folder_.path("pairs"));
  for (const char* name : {"pairs/a.bin", "pairs/a.idx", "pairs/b.idx", "pairs/c.bin"})
    folder_.write(name, "x");
  EXPECT_EQ(find("$/pairs"), (Names{"pairs/a.bin", "pairs/b.idx", "pairs/c.bin"}));
  EXPECT_EQ(find("$/pairs/*"), (Names{"pairs/a.bin", "pairs/b.idx", "pairs/c.bin"}));
  EXPECT_EQ(find("$/pairs", Format::megatron), (Names{"pairs/a", "pairs/b"}));
  EXPECT_ERROR(find("$/corpus", Format::megatron), "holds no pair of .bin and .idx");
}

TEST_F(DataFiles, OfASavedDatasetAreAUserError) {
  for (const char* name : {"one/state.json", "one/dataset_info.json", "two/dataset_dict.json"}) {
    fs::create_directories(folder_.path(name).substr(0, folder_.path(name).rfind('/')));
    folder_.write(name, "{}");
  }
  EXPECT_ERROR(find("$/one"), "is a dataset saved by Hugging Face's datasets; make JSON lines");
  EXPECT_ERROR(find("$/two/"), "load_from_disk(sys.argv[1])[\"train\"].to_json");
  EXPECT_ERROR(find("$/two/"), "/two/ two.jsonl");
}

TEST_F(DataFiles, OfAnEmptyFolderAreAnError) {
  fs::create_directory(folder_.path("empty"));
  EXPECT_ERROR(find("$/empty"), "/empty' holds no file");
  EXPECT_ERROR(files_below(folder_.path("none")), "cannot be read: No such file");
}

}  // namespace
}  // namespace llamesh::data
