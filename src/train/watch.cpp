#include "train/watch.hpp"

#include <string>
#include <thread>

#include "comm/session.hpp"
#include "core/error.hpp"
#include "train/deadline.hpp"
#include "train/run_state.hpp"

namespace llamesh::train {

comm::Watchdog watch_over(const comm::Communicator& world) {
  return {world, alarm_of_run(""), {.job_ends = Deadline::termination_asked}};
}

comm::Watchdog::Alarm alarm_of_run(const std::filesystem::path& run_folder) {
  return [run_folder](const std::string& line) {
    comm::end_process_soon(ExitCode::stopped_early);
    if (line.empty()) {
      std::this_thread::sleep_for(
          std::chrono::seconds(1));  // another rank tells it in the meantime
    } else {
      print_error(line + "; the job is ended");
      if (!run_folder.empty()) record_failure(run_folder, ExitCode::stopped_early, line);
    }
    comm::abort_job(ExitCode::stopped_early);
  };
}

std::chrono::seconds time_for_first_checkpoint(const Setup& setup) {
  constexpr std::int64_t state_bytes = 12;  // of a parameter: fp32 weight and two moments
  constexpr std::int64_t bytes_per_second = 250'000'000;
  return std::chrono::minutes(10) +
         std::chrono::seconds(state_bytes * setup.table->numel() / bytes_per_second);
}

}  // namespace llamesh::train
