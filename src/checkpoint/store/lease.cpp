#include "checkpoint/store/lease.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/process.hpp"
#include "core/slurm/own_job.hpp"
#include "core/text.hpp"

namespace llamesh::checkpoint {
namespace {

using namespace std::chrono_literals;
constexpr auto touch_every = 5s;
constexpr auto dead_after = 12s;

/// Text in a free lease. It is not empty, so that its block is allocated and a lease can be taken
/// on a full disk.
constexpr std::string_view released = "released";

LeaseHolder read_holder(const Descriptor& file) {
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(file.read_some(0, text.data(), std::ssize(text))));
  return parse_lease(text);
}

std::int64_t touched(const Descriptor& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    fail(ExitCode::io_failure, "cannot see whether a lease is held: {}", std::strerror(errno));
  return status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// Formats what is known about the holder: "job 17 (host n1, process 4711)".
std::string describe(const LeaseHolder& holder) {
  if (holder.job.empty()) return "another job, which has not given its name yet,";
  if (holder.process.empty()) return fmt::format("job {}", excerpt(holder.job));
  return fmt::format("job {} (host {}, process {})", excerpt(holder.job), excerpt(holder.host),
                     excerpt(holder.process));
}

[[noreturn]] void refuse(const std::filesystem::path& folder, const LeaseHolder& holder) {
  fail(ExitCode::bad_input,
       "{} is writing into {} and holds {}; wait for it to end, or choose another run.folder",
       describe(holder), folder.string(), (folder / ".lease").string());
}

}  // namespace

std::string to_text(const LeaseHolder& holder) {
  return fmt::format("{} {} {}\n", holder.job, holder.host, holder.process);
}

LeaseHolder parse_lease(std::string_view text) {
  std::string words(text);
  std::ranges::replace_if(
      words, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  LeaseHolder holder;
  std::istringstream(words) >> holder.job >> holder.host >> holder.process;
  return holder.job == released ? LeaseHolder{} : holder;
}

struct Lease::Heartbeat {
  explicit Heartbeat(const std::filesystem::path& folder)
      : file(Descriptor::to_write(folder / ".lease", O_RDWR | O_CREAT)) {
    const bool locked = flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    const auto holder = read_holder(file);
    // On any other error the file system does not support locks, so the lease relies on
    // modification times.
    if (!locked && errno == EWOULDBLOCK) refuse(folder, holder);
    if (!holder.job.empty()) take_over(folder, holder, locked);
    say(to_text({job_id(), this_process().host, std::to_string(getpid())}));
    thread = std::thread([this] { beat(); });
  }

  ~Heartbeat() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (thread.joinable()) thread.join();
    try {
      say(fmt::format("{}\n", released));
    } catch (const std::exception& error) {
      spdlog::warn("a lease could not be released: {}", error.what());
    }
  }

  void say(const std::string& text) {
    file.write(0, text.data(), std::ssize(text));
    file.resize(std::ssize(text));
  }

  void take_over(const std::filesystem::path& folder, const LeaseHolder& holder,
                 bool locked) const {
    const bool died_here = locked && holder.host == this_process().host;
    const bool waits = !died_here && holder.job != job_id();
    if (waits) {
      spdlog::warn("{} left a lease on {}; waiting {} s to see whether it lives", describe(holder),
                   folder.string(), dead_after.count());
      const auto before = touched(file);
      std::this_thread::sleep_for(dead_after);
      if (touched(file) != before) refuse(folder, holder);
    }
    spdlog::warn("taking over {} from {}, which stopped without releasing it{}", folder.string(),
                 describe(holder),
                 waits ? fmt::format(" (no heartbeat for {} s)", dead_after.count()) : "");
  }

  void beat() {
    std::unique_lock lock(mutex);
    bool in_place = true;
    while (!wake.wait_for(lock, touch_every, [this] { return stop; })) {
      futimens(file.get(), nullptr);
      if (std::exchange(in_place, is_in_place()) && !in_place)
        spdlog::warn("{}: put it back before the next save, which otherwise ends the run",
                     moved_away());
    }
  }

  /// Returns false if another file has this one's path, or none. Errors of the file system do not
  /// count.
  bool is_in_place() const {
    struct stat own {};
    struct stat there {};
    if (fstat(file.get(), &own) != 0) return true;
    if (lstat(file.path().c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;
    return own.st_dev == there.st_dev && own.st_ino == there.st_ino;
  }

  std::string moved_away() const {
    return fmt::format("{} was removed or renamed while this run writes into it",
                       file.path().parent_path().string());
  }

  Descriptor file;
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
};

Lease::Lease(const std::filesystem::path& folder)
    : heartbeat_(std::make_unique<Heartbeat>(folder)) {}
Lease::~Lease() = default;

void Lease::check_in_place() const {
  if (!heartbeat_->is_in_place())
    fail(ExitCode::io_failure, "{}: nothing more is saved; put it back and start the run again",
         heartbeat_->moved_away());
}

}  // namespace llamesh::checkpoint
