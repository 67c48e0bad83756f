#include "comm/mpi/process_limits.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "core/error.hpp"

namespace llamesh::comm {
namespace {

namespace fs = std::filesystem;

void check_umask() {
  const mode_t mask = umask(0);
  umask(mask);
  validate((mask & S_IRWXU) == 0,
           "the umask is {:03o}, so this process may not use the files that it makes; set another "
           "one (umask 022)",
           mask);
}

/// Open MPI 4.1 alone takes about 30.
void check_open_files() {
  constexpr rlim_t least = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  validate(limit.rlim_cur >= least,
           "this process may open {} files (ulimit -n), and MPI with its libraries needs {}; raise "
           "the limit, for example to 1024",
           limit.rlim_cur, least);
}

/// Open MPI 4.1 keeps memory that processes share in files of 4 MiB and a little.
void check_file_size() {
  constexpr rlim_t least = 8 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  validate(limit.rlim_cur >= least,
           "this process may write files of {} bytes (ulimit -f), and MPI needs {} for the memory "
           "that processes share; raise the limit",
           limit.rlim_cur, least);
}

/// Open MPI makes a folder for its own files in the first of these that is set, else in /tmp.
void check_temporary_folder(const Environment& environment) {
  for (const char* name : {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"}) {
    const char* folder = environment(name);
    if (folder == nullptr) continue;
    std::error_code ignored;
    fs::path there = fs::absolute(folder, ignored);
    while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
    validate(fs::is_directory(there, ignored) && access(there.c_str(), W_OK | X_OK) == 0,
             "{} is {}, where this process cannot make the folder that Open MPI needs; name "
             "another one, or unset it",
             name, folder);
    return;
  }
}

}  // namespace

void check_process_limits(const Launch& launch, const Environment& environment,
                          std::string_view library) {
  // A launcher's daemon has made the folder, and what processes of a node share beside it.
  const bool alone =
      library.find("Open MPI") != library.npos && environment("PMIX_RANK") == nullptr;
  check_umask();
  check_open_files();
  if (alone || launch.ranks > 1) check_file_size();
  if (alone) check_temporary_folder(environment);
}

}  // namespace llamesh::comm
