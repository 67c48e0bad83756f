#include "checkpoint/format/state_writer.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/format/format.hpp"
#include "comm/calls/flight_record.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr auto timeout = std::chrono::seconds(5);

/// Ends the job unless it is destroyed within `timeout`.
class AbortTimer {
 public:
  explicit AbortTimer(std::string why) : why_(std::move(why)), thread_([this] { wait(); }) {}
  ~AbortTimer() {
    {
      const std::lock_guard lock(mutex_);
      in_time_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  AbortTimer(const AbortTimer&) = delete;
  AbortTimer& operator=(const AbortTimer&) = delete;

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, timeout, [this] { return in_time_; })) return;
    print_error(fmt::format("rank {} on {}: {}", this_process().rank, this_process().host, why_));
    comm::abort_job(ExitCode::io_failure);
  }

  std::string why_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool in_time_ = false;
  std::thread thread_;
};

}  // namespace

void agree_or_abort(const comm::Communicator& world, const char* kind,
                    const std::function<void()>& phase) {
  std::optional<AbortTimer> timer;
  comm::agree(world, [&] {
    try {
      const comm::InCollective in(world.members(), kind, state_name);
      phase();
    } catch (const std::exception& error) {
      timer.emplace(error.what());
      throw;
    }
  });
}

}  // namespace llamesh::checkpoint
