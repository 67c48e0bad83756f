#include "checkpoint/models/hf_new_folder.hpp"

#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/slurm/own_job.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Makes the path absolute and drops a trailing slash, so that it has a parent and a name.
fs::path plain(const fs::path& path) {
  auto whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

}  // namespace

void check_is_new(const fs::path& target) {
  const auto whole = plain(target);
  std::error_code error;
  validate(!fs::exists(fs::symlink_status(whole, error)),
           "{} is there already; remove it or choose another name", whole.string());
}

NewFolder::NewFolder(const fs::path& target, const comm::Communicator& world)
    : world_(world), target_(plain(target)) {
  partial_ = comm::on_rank_0(world_, [&] {
    check_is_new(target_);
    std::error_code error;
    auto partial = target_;
    partial += ".partial-" + job_name();
    fs::remove_all(partial, error);
    make_folder(partial);
    return partial.string();
  });
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!committed_ && world_.rank() == 0) fs::remove_all(partial_, error);
}

void NewFolder::commit() {
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    sync_folder(partial_);
    rename_path(partial_, target_);
    sync_folder(target_.parent_path());
  });
  committed_ = true;
}

}  // namespace llamesh::checkpoint
