#include "train/job/watch.hpp"

#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "comm/mpi/session.hpp"
#include "comm/mpi/time_limit.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/slurm/own_job.hpp"
#include "train/job/deadline.hpp"
#include "train/job/flight_files.hpp"
#include "train/job/run_folder.hpp"
#include "train/records/failure.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::train {

comm::Watchdog watch_over(const comm::Communicator& world) {
  auto limits = comm::Watchdog::Limits::for_silence(comm::silence_limit(std::getenv));
  limits.job_ends = Deadline::termination_asked;
  return {world, alarm_of_run(""), std::move(limits)};
}

namespace {

/// Rank 0 has the file open; the reporting rank may be another.
void write_to_log(const std::filesystem::path& run_folder, const std::string& line) {
  try {
    append_to_log(log_file(run_folder), line);
  } catch (const std::exception&) {
    return;  // it has been printed
  }
}

/// Records the diagnosis in log.txt, state.json, failure.json and the job's comment.
void record_diagnosis(const std::filesystem::path& run_folder, ExitCode code,
                      const comm::Diagnosis& diagnosis) {
  bool first = true;
  if (!run_folder.empty()) {
    write_to_log(run_folder, diagnosis.line + "; the job is ended");
    first = record_failure(run_folder, code, diagnosis);
    FlightFiles::dump();
  }
  // The launcher may have ended the ranks that this one finds silent, and not yet this one.
  if (first) comment_job(diagnosis.line);
}

}  // namespace

comm::Watchdog::Alarm alarm_of_run(const std::filesystem::path& run_folder) {
  return [run_folder](const comm::Diagnosis& diagnosis) {
    // Ranks that call different collectives would do so again.
    const auto code =
        diagnosis.kind == "order" ? ExitCode::internal_error : ExitCode::stopped_early;
    comm::end_process_soon(code);
    if (diagnosis.line.empty()) {
      FlightFiles::dump();
      std::this_thread::sleep_for(std::chrono::seconds(3));  // another rank reports in the meantime
    } else if (diagnosis.of_minority) {
      print_error(diagnosis.line + "; it ends");
      FlightFiles::dump();
    } else {
      print_error(diagnosis.line + "; the job is ended");
      note_end(code, failure_of(diagnosis));
      record_diagnosis(run_folder, code, diagnosis);
    }
    comm::abort_job(code);
  };
}

std::chrono::seconds time_for_first_checkpoint(const Setup& setup) {
  constexpr std::int64_t state_bytes = 12;  // of a parameter: fp32 weight and two moments
  constexpr std::int64_t bytes_per_second = 250'000'000;
  return std::chrono::minutes(10) +
         std::chrono::seconds(state_bytes * setup.table->numel() / bytes_per_second);
}

}  // namespace llamesh::train
