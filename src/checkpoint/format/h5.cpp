#include "checkpoint/format/h5.hpp"

#include <hdf5.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/mpi/mpi.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/tensor.hpp"

namespace llamesh::checkpoint::h5 {
namespace {

constexpr std::int64_t max_transfer = std::int64_t{1} << 28U;  // elements: 1 GiB, below MPI-IO's 2

/// Configures HDF5 once per process. Our messages contain the error stack, so HDF5 need not print
/// it.
void set_up() {
  static const bool done = [] {
    H5dont_atexit();  // an abandoned file must not be closed at exit
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return true;
  }();
  static_cast<void>(done);
}

/// Formats HDF5's error stack on one line, innermost cause last.
std::string error_stack() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_DOWNWARD,
      [](unsigned, const H5E_error2_t* entry, void* out) -> herr_t {
        auto& line = *static_cast<std::string*>(out);
        if (entry->desc == nullptr) return 0;
        line += line.empty() ? "" : " <- ";
        line += entry->desc;
        return 0;
      },
      &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no reason given" : text;
}

void check(bool ok, std::string_view doing, std::string_view name) {
  if (!ok) fail(ExitCode::io_failure, "HDF5 failed to {} {}: {}", doing, name, error_stack());
}

/// Calls `open` until no signal interrupts it. HDF5 does not retry open() on EINTR, which network
/// file systems may return.
template <class Open>
hid_t uninterrupted(Open open) {
  while (true) {
    errno = 0;
    const hid_t id = open();
    if (id >= 0 || errno != EINTR) return id;
    H5Eclear2(H5E_DEFAULT);
  }
}

std::vector<hsize_t> extents(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

Handle properties(hid_t kind) {
  return {H5Pcreate(kind), H5Pclose, "make a property list"};
}

/// Returns how to open a file. Locks are off, unless HDF5_USE_FILE_LOCKING is set, because some
/// cluster file systems refuse them; the lease excludes a second job.
Handle file_access() {
  set_up();
  Handle access = properties(H5P_FILE_ACCESS);
  check(H5Pset_file_locking(access.id(), /*use_file_locking=*/false,
                            /*ignore_when_disabled=*/true) >= 0,
        "switch off", "file locks");
  return access;
}

/// An MPI_Info with the hints for the MPI-IO driver.
class MpiInfo {
 public:
  explicit MpiInfo(const std::vector<std::string>& hints) {
    comm::check(MPI_Info_create(&info_), "MPI_Info_create");
    for (const auto& hint : hints) {
      const auto at = hint.find('=');
      comm::check(MPI_Info_set(info_, hint.substr(0, at).c_str(), hint.substr(at + 1).c_str()),
                  "MPI_Info_set");
    }
  }
  ~MpiInfo() { MPI_Info_free(&info_); }
  MpiInfo(const MpiInfo&) = delete;
  MpiInfo& operator=(const MpiInfo&) = delete;
  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

bool is_dataset_in(std::string_view path, std::string_view group) {
  return path.starts_with(group) && path.find('/', group.size()) == path.npos;
}

/// Returns true if this soft link is a tied head: GROUP/lm_head.weight to another dataset there.
bool is_alias_of_head(hid_t file, std::string_view name, std::size_t target_bytes) {
  constexpr std::string_view head = "/lm_head.weight";
  if (!name.ends_with(head)) return false;
  const auto group = name.substr(0, name.size() - head.size());
  const auto beginning = fmt::format("/{}/", group);
  std::string target(target_bytes, '\0');
  return H5Lget_val(file, std::string(name).c_str(), target.data(), target.size(), H5P_DEFAULT) >=
             0 &&
         is_dataset_in(target.c_str(), beginning) && target.c_str() != beginning + "lm_head.weight";
}

void write_attribute(hid_t file, const std::string& name, const Handle& type, const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, "make a scalar");
  const Handle attribute(
      H5Acreate2(file, name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
      "make the attribute " + name);
  check(H5Awrite(attribute.id(), type.id(), value) >= 0, "write the attribute", name);
}

}  // namespace

Handle::Handle(std::int64_t id, Close closer, std::string_view doing) : id_(id), close_(closer) {
  if (id < 0) fail(ExitCode::io_failure, "HDF5 failed to {}: {}", doing, error_stack());
}

Handle::~Handle() {
  if (id_ >= 0 && close_(id_) < 0 && std::uncaught_exceptions() == 0)
    spdlog::warn("HDF5 failed to close something: {}", error_stack());
}

Handle::Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

void Handle::close(std::string_view doing) {
  check(close_(std::exchange(id_, -1)) >= 0, "close", doing);
}

void Handle::release() {
  id_ = -1;
}

Dataset::Dataset(Handle handle, std::string path)
    : handle_(std::move(handle)), path_(std::move(path)) {
  // Check the layout first: asking a virtual dataset for its shape opens other files.
  const Handle plist(H5Dget_create_plist(handle_.id()), H5Pclose, "ask for the layout of " + path_);
  const Handle type(H5Dget_type(handle_.id()), H5Tclose, "ask for the type of " + path_);
  if (H5Pget_layout(plist.id()) != H5D_CONTIGUOUS || H5Pget_external_count(plist.id()) != 0 ||
      H5Tequal(type.id(), H5T_IEEE_F32LE) <= 0)
    fail(ExitCode::io_failure, "{} is not contiguous little-endian fp32 within its file", path_);
  const Handle space(H5Dget_space(handle_.id()), H5Sclose, "ask for the shape of " + path_);
  const int dims = H5Sget_simple_extent_ndims(space.id());
  check(dims >= 1 && dims <= Tensor::max_dims, "find one to four dims in", path_);
  std::vector<hsize_t> sizes(static_cast<std::size_t>(dims));
  check(H5Sget_simple_extent_dims(space.id(), sizes.data(), nullptr) == dims, "read the shape of",
        path_);
  for (const auto size : sizes) shape_.push_back(static_cast<std::int64_t>(size));
  const auto numel = H5Sget_simple_extent_npoints(space.id());
  if (const auto stored = H5Dget_storage_size(handle_.id());
      stored / sizeof(float) != static_cast<hsize_t>(numel) || stored % sizeof(float) != 0)
    fail(ExitCode::io_failure, "{} has {} bytes in its file for {} elements", path_, stored, numel);
}

std::int64_t Dataset::offset() const {
  const haddr_t at = H5Dget_offset(handle_.id());
  check(at != HADDR_UNDEF, "find the bytes of", path_);
  return static_cast<std::int64_t>(at);
}

void Dataset::write(const Box& box, std::int64_t begin, std::span<const float> values) {
  // HDF5 only reads through the pointer during a write.
  transfer({box, begin, std::ssize(values)}, const_cast<float*>(values.data()), Direction::write);
}

void Dataset::read(const Box& box, std::int64_t begin, std::span<float> values) const {
  transfer({box, begin, std::ssize(values)}, values.data(), Direction::read);
}

/// Transfers box by box, since an element range is not a hyperslab. A whole dataset's box is
/// contiguous in the file, so HDF5 moves it in one piece.
void Dataset::transfer(const BoxRange& range, float* data, Direction direction) const {
  expects(range.count <= max_transfer, "a transfer of {} elements, at most {}", range.count,
          max_transfer);
  for_each_box(range,
               [&](const Box& box, std::int64_t at) { transfer_box(box, data + at, direction); });
}

void Dataset::transfer_box(const Box& box, float* data, Direction direction) const {
  const auto start = extents(box.begin);
  const auto size = extents(box.shape);
  const auto numel = static_cast<hsize_t>(box.numel());
  const Handle file_space(H5Dget_space(handle_.id()), H5Sclose, "ask for the shape of " + path_);
  check(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, start.data(), nullptr, size.data(),
                            nullptr) >= 0,
        "select a range of", path_);
  const Handle memory(H5Screate_simple(1, &numel, nullptr), H5Sclose, "describe memory");
  const auto id = handle_.id();
  if (direction == Direction::write)
    check(H5Dwrite(id, H5T_NATIVE_FLOAT, memory.id(), file_space.id(), H5P_DEFAULT, data) >= 0,
          "write", path_);
  else
    check(H5Dread(id, H5T_NATIVE_FLOAT, memory.id(), file_space.id(), H5P_DEFAULT, data) >= 0,
          "read", path_);
}

File::File(Handle handle, std::filesystem::path path)
    : handle_(std::move(handle)), path_(std::move(path)) {}

File File::create(const std::filesystem::path& path) {
  const Handle access = file_access();
  H5Pset_alignment(access.id(), 64 << 10, 4 << 10);  // large data on page boundaries
  // The first format that can hold attributes above 64 KiB; it then keeps all of them in a heap.
  check(H5Pset_libver_bounds(access.id(), H5F_LIBVER_V18, H5F_LIBVER_V110) >= 0,
        "choose the file format of", path.string());
  const Handle creation = properties(H5P_FILE_CREATE);
  H5Pset_obj_track_times(creation.id(), false);  // equal states give equal files
  H5Pset_attr_phase_change(creation.id(), 0, 0);
  const auto create = [&] {
    return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id());
  };
  Handle file(uninterrupted(create), H5Fclose, "create " + path.string());
  return {std::move(file), path};
}

File File::open_to_fill(const std::filesystem::path& path, const comm::Communicator& group,
                        const std::vector<std::string>& hints) {
  const MpiInfo info(hints);
  const Handle access = file_access();
  check(H5Pset_fapl_mpio(access.id(), comm::native(group), info.get()) >= 0, "use MPI-IO for",
        path.string());
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), H5Fclose, "open " + path.string());
  return {std::move(file), path};
}

File File::open(const std::filesystem::path& path) {
  Descriptor::to_read(path, ExitCode::io_failure);
  const Handle access = file_access();
  const auto open = [&] { return H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()); };
  return {Handle(uninterrupted(open), H5Fclose, "open " + path.string()), path};
}

Dataset File::create_dataset(const std::string& path, const Shape& shape) {
  const Handle link = properties(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(link.id(), 1);
  const Handle creation = properties(H5P_DATASET_CREATE);
  H5Pset_layout(creation.id(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.id(), false);
  const auto sizes = extents(shape);
  const Handle space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                     H5Sclose, "describe the shape of " + path);
  return {Handle(H5Dcreate2(handle_.id(), path.c_str(), H5T_IEEE_F32LE, space.id(), link.id(),
                            creation.id(), H5P_DEFAULT),
                 H5Dclose, "create the dataset " + path),
          path};
}

void File::create_attribute(const std::string& name, const std::string& text) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "make a string type");
  H5Tset_size(type.id(), text.size() + 1);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  write_attribute(handle_.id(), name, type, text.c_str());
}

void File::create_attribute(const std::string& name, std::int64_t number) {
  const Handle type(H5Tcopy(H5T_STD_I64LE), H5Tclose, "make a number type");
  write_attribute(handle_.id(), name, type, &number);
}

void File::link(const std::string& target, const std::string& path) {
  check(H5Lcreate_soft(target.c_str(), handle_.id(), path.c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0,
        "make the link", path);
}

void File::check_links() const {
  std::string wrong;
  const auto check_link = [](hid_t group, const char* name, const H5L_info_t* link,
                             void* found) -> herr_t {
    if (link->type == H5L_TYPE_HARD) return 0;
    if (link->type == H5L_TYPE_SOFT && is_alias_of_head(group, name, link->u.val_size)) return 0;
    *static_cast<std::string*>(found) = name;
    return 1;  // ends the visit
  };
  check(H5Lvisit(handle_.id(), H5_INDEX_NAME, H5_ITER_NATIVE, check_link, &wrong) >= 0,
        "follow the links of", path_.string());
  if (!wrong.empty())
    fail(ExitCode::io_failure, "{} has a link that leads elsewhere: /{}", path_.string(), wrong);
}

Dataset File::dataset(const std::string& path) const {
  return {Handle(H5Dopen2(handle_.id(), path.c_str(), H5P_DEFAULT), H5Dclose,
                 "open the dataset " + path),
          path};
}

void File::abandon() {
  handle_.release();
}

void File::close() {
  handle_.close(path_.string());
}

void check_hints(const std::vector<std::string>& hints) {
  for (const auto& hint : hints) {
    const auto at = hint.find('=');
    validate(at != std::string::npos && at > 0 && at < MPI_MAX_INFO_KEY && at + 1 < hint.size() &&
                 hint.size() - at - 1 < MPI_MAX_INFO_VAL,
             "checkpoint.mpi_io_hints: '{}' is not key=value, e.g. striping_factor=16", hint);
  }
}

std::string version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace llamesh::checkpoint::h5
