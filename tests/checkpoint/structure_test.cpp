#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/format/h5.hpp"
#include "checkpoint/format/state_writer.hpp"
#include "core/file.hpp"
#include "fixture.hpp"
#include "hostile_files.hpp"

// Crafted files whose manifest and hashes match, but HDF5 would read other bytes than the manifest
// says, or other files.

namespace llamesh::test {
namespace {

namespace fs = std::filesystem;

/// A saved checkpoint with one dataset removed from state.h5, so that something else can replace
/// it. Runs on one rank.
class Structure : public testing::Test {
 protected:
  void SetUp() override {
    run_.fill(1);
    path_ = checkpoint::Store(folder_.path(), {}, world()).save(run_.state(), progress(1));
    manifest_ = checkpoint::read_manifest(path_);
    for (auto& d : manifest_.datasets)
      if (d.path == victim_) entry_ = &d;
  }

  void open() {
    file_ = H5Fopen((path_ / "state.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file_, 0);
    ASSERT_GE(H5Ldelete(file_, victim_.c_str(), H5P_DEFAULT), 0);
  }

  /// Creates a dataset in the victim's place, and writes its offset into the manifest.
  void make(hid_t type, std::vector<hsize_t> shape, hid_t plist = H5P_DEFAULT) {
    const auto space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const auto made =
        H5Dcreate2(file_, victim_.c_str(), type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    ASSERT_GE(made, 0);
    const std::vector<float> values(static_cast<std::size_t>(entry_->numel()), 1.0F);
    const auto numel = static_cast<hsize_t>(H5Sget_simple_extent_npoints(space));
    if (plist == H5P_DEFAULT && H5Tget_class(type) == H5T_FLOAT && numel <= values.size()) {
      ASSERT_GE(H5Dwrite(made, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
      entry_->offset = static_cast<std::int64_t>(H5Dget_offset(made));
    }
    H5Dclose(made);
    H5Sclose(space);
  }

  /// Closes the file, and writes a manifest with matching checksums.
  void seal() {
    ASSERT_GE(H5Fclose(file_), 0);
    const auto h5 = path_ / "state.h5";
    manifest_.file_bytes = static_cast<std::int64_t>(fs::file_size(h5));
    manifest_.metadata_hash = checkpoint::metadata_hash(h5, manifest_.datasets);
    write_durably(path_ / "manifest.json", checkpoint::to_text(manifest_));
  }

  /// Expects a refusal; every command that reads a checkpoint starts with its manifest.
  void expect_refused(const std::string& part) {
    seal();
    const TimeLimit limit(20);
    try {
      checkpoint::read_manifest(path_);
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io_failure);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_FALSE(checkpoint::find_damage(path_).empty());
    EXPECT_EQ(code_of([&] {
                checkpoint::read_state(path_, run_.state(), world(),
                                       checkpoint::OtherGroups::refuse);
              }),
              ExitCode::io_failure);
  }

  const std::string victim_ = "/model/model.layers.0.self_attn.q_proj.weight";
  const std::string not_ours_ = "is not contiguous little-endian fp32 within its file";
  const std::vector<hsize_t> shape_{24, 24};
  Folder folder_;
  Job run_{1};
  fs::path path_;
  checkpoint::Manifest manifest_;
  checkpoint::DatasetEntry* entry_ = nullptr;
  hid_t file_ = -1;
};

TEST_F(Structure, ThatIsAsWrittenIsTaken) {
  open();
  make(H5T_IEEE_F32LE, shape_);
  entry_->segments = {{0, entry_->numel(), entry_->segments[0].hash}};
  seal();
  EXPECT_EQ(checkpoint::read_manifest(path_).progress.step, 1);
  EXPECT_EQ(checkpoint::find_damage(path_).size(), 1U) << "other values than the hash says";
}

TEST_F(Structure, OfAnotherType) {
  for (const hid_t type : {H5T_IEEE_F32BE, H5T_STD_I32LE, H5T_IEEE_F64LE}) {
    open();
    make(type, type == H5T_IEEE_F64LE ? std::vector<hsize_t>{12, 24} : shape_);
    expect_refused(not_ours_);
  }
}

TEST_F(Structure, OfAnotherShape) {
  for (const auto& shape : {std::vector<hsize_t>{576}, {12, 48}, {23, 24}, {1, 24, 24}}) {
    open();
    make(H5T_IEEE_F32LE, shape);
    expect_refused("is not stored in state.h5 as the manifest says");
  }
  open();
  make(H5T_IEEE_F32LE, {1, 1, 1, 24, 24});
  expect_refused("one to four dims");
}

TEST_F(Structure, OfBytesElsewhereInTheFile) {
  open();
  make(H5T_IEEE_F32LE, shape_);
  entry_->offset -= 4;
  expect_refused("is not stored in state.h5 as the manifest says");
}

TEST_F(Structure, OfBytesThatWereNeverWritten) {
  open();
  const auto plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_alloc_time(plist, H5D_ALLOC_TIME_LATE);
  make(H5T_IEEE_F32LE, shape_, plist);
  expect_refused("has 0 bytes in its file for 576 elements");
}

TEST_F(Structure, OfChunks) {
  open();
  const auto plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plist, 2, shape_.data());
  make(H5T_IEEE_F32LE, shape_, plist);
  expect_refused(not_ours_);
}

TEST_F(Structure, OfBytesInAnotherFile) {
  const auto other = folder_.path() / "other";
  ASSERT_EQ(mkfifo(other.c_str(), 0600), 0);
  open();
  const auto plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(plist, other.c_str(), 0, H5F_UNLIMITED);
  make(H5T_IEEE_F32LE, shape_, plist);
  expect_refused(not_ours_);
}

TEST_F(Structure, OfDatasetsInAnotherFile) {
  const auto other = folder_.path() / "other";
  ASSERT_EQ(mkfifo(other.c_str(), 0600), 0);
  open();
  const auto plist = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t rows = H5S_UNLIMITED;
  const std::array<hsize_t, 2> most{rows, 24};
  const auto space = H5Screate_simple(2, shape_.data(), most.data());
  const auto source = H5Screate_simple(2, shape_.data(), most.data());
  const std::array<hsize_t, 2> start{0, 0}, count{H5S_UNLIMITED, 1}, block{1, 24};
  for (const auto one : {space, source})
    ASSERT_GE(
        H5Sselect_hyperslab(one, H5S_SELECT_SET, start.data(), nullptr, count.data(), block.data()),
        0);
  ASSERT_GE(H5Pset_virtual(plist, space, other.c_str(), "/data", source), 0);
  const auto made =
      H5Dcreate2(file_, victim_.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  ASSERT_GE(made, 0);
  H5Dclose(made);
  expect_refused(not_ours_);
}

TEST_F(Structure, WithALinkToAnotherFile) {
  const auto other = folder_.path() / "other";
  ASSERT_EQ(mkfifo(other.c_str(), 0600), 0);
  for (const std::string& at : {victim_, std::string("/notes")}) {
    open();
    H5Lcreate_external(other.c_str(), "/data", file_, at.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    expect_refused("has a link that leads elsewhere: " + at);
    SetUp();
  }
}

TEST_F(Structure, WithASoftLinkThatIsNotThatOfATiedHead) {
  const std::string embeddings = "/model/model.embed_tokens.weight";
  for (const auto& [at, target] : std::vector<std::pair<std::string, std::string>>{
           {victim_, "/model/model.layers.1.self_attn.q_proj.weight"},
           {"/lm_head.weight", embeddings},
           {"/optimizer/exp_avg/more/lm_head.weight", embeddings},
           {"/model/head.weight", embeddings}}) {
    open();
    const auto plist = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(plist, 1);
    ASSERT_GE(H5Lcreate_soft(target.c_str(), file_, at.c_str(), plist, H5P_DEFAULT), 0);
    expect_refused("has a link that leads elsewhere: " + at);
    SetUp();
  }
}

TEST_F(Structure, OfATiedHeadIsTaken) {
  const Job tied(1, sharding::Wrap::layer, small_config(24, /*tied=*/true));
  tied.fill(2);
  const Folder folder;
  const auto path = checkpoint::Store(folder.path(), {}, world()).save(tied.state(), progress(1));
  EXPECT_TRUE(checkpoint::find_damage(path).empty());
}

TEST_F(Structure, IsReadWhileAnotherProgramHasAFileLock) {
  const auto h5 = path_ / "state.h5";
  const int other = ::open(h5.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(other, 0);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_NO_THROW(checkpoint::h5::File::open(h5));
  close(other);
}

}  // namespace
}  // namespace llamesh::test
