#include "app/supervise/supervisor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "app/supervise/bad_nodes.hpp"
#include "app/supervise/child.hpp"
#include "app/supervise/guard.hpp"
#include "app/supervise/launch_end.hpp"
#include "app/supervise/launch_watch.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "comm/mpi/time_limit.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/slurm/slurm_job.hpp"
#include "train/job/deadline.hpp"
#include "train/job/run_folder.hpp"

namespace llamesh::app {
namespace {

using Clock = std::chrono::steady_clock;
using Nodes = std::vector<std::string>;
using namespace std::chrono_literals;

constexpr auto poll_interval = 100ms;
constexpr auto look_interval = 1s;  // at state.json
/// Pauses before the launches that follow one that has not started. Leftovers of an earlier step on
/// a node are in the way until Slurm clears them away.
constexpr std::array pauses{0s, 5s, 10s, 20s};
constexpr std::size_t max_relaunches_per_hour = 10;
/// A greater exit code, as from srun if ranks were killed, would say that supervise was killed.
constexpr int max_code = 128;

/// Returns true for exit codes that another start would not change (docs/exit-codes.md).
bool is_final(int code) {
  constexpr std::array codes{70, 74, 78, 93};
  return std::ranges::find(codes, code) != codes.end();
}

/// Returns true if a signal that asks to stop killed a rank before it had reached main.
bool is_killed_by_stop_signal(int code) {
  return code == 128 + SIGUSR1 || code == 128 + SIGUSR2;
}

bool contains(const Nodes& nodes, std::string_view host) {
  return std::ranges::any_of(nodes, [&](const auto& node) { return is_same_host(node, host); });
}

/// Sleeps; a signal that asks to stop ends that early.
void pause_for(Clock::duration time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end && received_stop_signal() == 0)
    std::this_thread::sleep_for(poll_interval);
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseArguments& arguments)
      : arguments_(arguments),
        folder_(arguments.run),
        job_(launcher_of(arguments.command), checkpoint::removal_command(folder_)),
        bad_nodes_(folder_),
        guard_(job_) {
    const auto given = job_.nodes().size();
    const auto spares = static_cast<std::size_t>(arguments.spares);
    validate(spares < given,
             "{} spares of {} nodes leave none for the run; give the job more nodes", spares,
             given);
    wanted_ = max_nodes_ = given - spares;
  }

  /// Returns the exit code.
  int run() try {
    const int code = launch_until_it_ends();
    // A run that is done has cleaned up its own nodes, but not those of earlier launches.
    if (code != 0 || launches_ > 1) clean_up();
    return code;
  } catch (...) {
    clean_up();
    throw;
  }

 private:
  int launch_until_it_ends() {
    while (true) {
      if (received_stop_signal() != 0) return finish(last_code_);
      wait_for_silent_nodes();
      const auto nodes = choose_nodes();
      const bool shrinks = arguments_.resize == Resize::shrink && !nodes.empty();
      if (nodes.size() < max_nodes_ && !shrinks) {
        say("{} of {} healthy nodes are left in {}", nodes.size(), wanted_, job_.name());
        return finish(last_code_);
      }
      if (nodes.size() < wanted_) say("the run continues on {} of {} nodes", nodes.size(), wanted_);
      const auto end = launch(nodes);
      last_code_ = end.code;
      if (const auto code = react(end, nodes)) return *code;
      job_.end_steps();
    }
  }

  /// Logs a line in the job's log, and in the run's if there is one.
  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    const auto line = fmt::format(text, std::forward<Args>(args)...);
    spdlog::info("{}", line);
    const auto log = train::log_file(folder_);
    std::error_code ignored;
    if (!std::filesystem::exists(log, ignored)) return;
    try {
      append_to_log(log, line);
    } catch (const std::exception&) {
      return;  // it is in the job's log
    }
  }

  /// See SlurmJob::runs().
  bool job_runs() {
    if (job_.runs()) return true;
    say("{} does not run any more, or was requeued: the run is not launched again", job_.name());
    return false;
  }

  bool halts() const { return train::Deadline::halt_file_is_there(folder_); }

  void blame(const std::string& node, const std::string& reason) {
    bad_nodes_.blame(node, reason);
    if (blamed_) blamed_->push_back(node);
    say("{} is left out{}: {}", node, bad_nodes_.is_out(node) ? " for good" : "", reason);
  }

  bool is_usable(const std::string& node) const {
    return std::ranges::find(unusable_, node) == unusable_.end();
  }

  Nodes usable_nodes() const {
    auto nodes = job_.living_nodes().usable;
    std::erase_if(nodes, [this](const auto& node) { return !is_usable(node); });
    return nodes;
  }

  /// If fewer than max_nodes_ nodes are healthy, waits for those that have not failed and do not
  /// answer Slurm.
  void wait_for_silent_nodes() const {
    // A busy node answers within seconds.
    const auto limit = comm::silence_limit(std::getenv) / 2;
    const auto is_healthy = [this](const auto& node) {
      return is_usable(node) && !bad_nodes_.has_failed(node);
    };
    const auto end = Clock::now() + limit;
    for (bool is_first = true; received_stop_signal() == 0; is_first = false) {
      auto [usable, silent] = job_.living_nodes();
      std::erase_if(silent, [&](const auto& node) { return !is_healthy(node); });
      const auto healthy = std::ranges::count_if(usable, is_healthy);
      if (silent.empty() || healthy >= static_cast<std::ptrdiff_t>(max_nodes_) ||
          Clock::now() >= end)
        return;
      if (is_first)
        spdlog::info("waiting up to {} s for {}, which Slurm gets no answer from", limit.count(),
                     fmt::join(silent, ", "));
      pause_for(1s);
    }
  }

  /// Returns up to max_nodes_ nodes. One that failed before is used only if a program can be
  /// launched on it.
  Nodes choose_nodes() {
    auto chosen = bad_nodes_.choose(usable_nodes(), max_nodes_);
    Nodes doubtful;
    std::ranges::copy_if(chosen, std::back_inserter(doubtful),
                         [this](const auto& node) { return bad_nodes_.has_failed(node); });
    const auto bad = job_.nodes_without_launch(doubtful);
    if (bad.empty()) return chosen;
    say("no program can be launched on {}, which failed before", fmt::join(bad, ", "));
    unusable_.insert(unusable_.end(), bad.begin(), bad.end());
    return choose_nodes();  // others, which may have failed before, too
  }

  std::vector<std::string> command_for(const Nodes& nodes) const {
    auto command = arguments_.command;
    const auto ranks = nodes.size() * static_cast<std::size_t>(job_.ranks_per_node());
    const std::array options{fmt::format("--nodes={}", nodes.size()),
                             fmt::format("--ntasks={}", ranks),
                             fmt::format("--nodelist={}", fmt::join(nodes, ","))};
    command.insert(command.begin() + 1, options.begin(), options.end());
    return command;
  }

  /// Tells the launch how many spares there are: it then measures its nodes (train::check_health).
  void announce_spares(const Nodes& nodes) const {
    const char* health = std::getenv("LLAMESH_HEALTH");
    if (health != nullptr && std::string_view(health) == "off")
      unsetenv("LLAMESH_SPARE_NODES");
    else
      setenv("LLAMESH_SPARE_NODES", fmt::format("{}", healthy_spares(nodes)).c_str(), 1);
  }

  /// Launches the run, and waits until it has ended.
  LaunchEnd launch(const Nodes& nodes) {
    ++launches_;
    record_.emplace(folder_);
    guard_.place_on(guard_nodes(nodes));
    setenv("LLAMESH_LAUNCH_TIME", fmt::format("{:.3f}", unix_time()).c_str(), 1);
    announce_spares(nodes);
    LaunchWatch watch(folder_, *record_, mpi_limit(nodes));
    Child srun(command_for(nodes));
    bool told = false;
    auto looked = Clock::now();
    while (!srun.exit_code()) {
      std::this_thread::sleep_for(poll_interval);
      guard_.keep();
      // srun passes the signal on, and the ranks save.
      if (received_stop_signal() != 0 && !std::exchange(told, true)) srun.send(SIGUSR2);
      if (Clock::now() - looked < look_interval) continue;
      looked = Clock::now();
      const auto why = watch.reason_to_end();
      if (!why) continue;
      say("{}", *why);
      job_.end_steps();
      srun.send(SIGKILL);
    }
    auto end = record_->end(*srun.exit_code());
    if (end.kind == LaunchEnd::Kind::not_started && end.code == 0 && watch.has_ended())
      end.kind = LaunchEnd::Kind::elsewhere;
    if (const auto unfit = watch.unfit_host())
      end = {.kind = LaunchEnd::Kind::unfit,
             .code = end.code,
             .hosts = {unfit->host},
             .reason = unfit->reason};
    return end;
  }

  /// Returns the number of unused nodes that have never failed.
  std::ptrdiff_t healthy_spares(const Nodes& nodes) const {
    return std::ranges::count_if(usable_nodes(), [&](const auto& node) {
      return !contains(nodes, node) && !bad_nodes_.has_failed(node);
    });
  }

  /// Returns how long the ranks wait for one another in MPI_Init and MPI_Finalize.
  std::chrono::seconds mpi_limit(const Nodes& nodes) const {
    const auto ranks = static_cast<int>(nodes.size()) * job_.ranks_per_node();
    return comm::mpi_timeout(std::getenv, ranks);
  }

  /// Returns up to two nodes for the guard, not this one: a spare and one in the launch if
  /// possible, which are unlikely to fail together.
  Nodes guard_nodes(const Nodes& nodes) const {
    constexpr std::size_t max_guards = 2;
    const auto& here = job_.nodes().front();
    auto launch = nodes;
    std::erase(launch, here);
    auto spares = usable_nodes();
    std::erase_if(spares, [&](const auto& node) { return node == here || contains(nodes, node); });
    auto guards = bad_nodes_.choose(spares, launch.empty() ? max_guards : 1);
    for (; guards.size() < max_guards && !launch.empty(); launch.pop_back())
      guards.push_back(launch.back());
    return guards;
  }

  /// Returns the exit code if the launch was the last.
  std::optional<int> react(const LaunchEnd& end, const Nodes& nodes) {
    if (end.kind == LaunchEnd::Kind::elsewhere) {
      say("llamesh ended with 0, but wrote no state.json in {}: give the command the same "
          "run.folder",
          folder_.string());
      return 1;
    }
    blame_for_earlier_failure();
    const bool is_unfit = end.kind == LaunchEnd::Kind::unfit;
    if (is_unfit && replace(end.hosts.front(), end.reason)) return {};
    const bool has_started = !is_unfit && end.kind != LaunchEnd::Kind::not_started;
    if (has_started) blamed_.emplace();
    const bool refused_smaller = end.code == 78 && nodes.size() < wanted_ && !has_started;
    if (refused_smaller) {
      last_code_ = 75;  // only for its number of nodes: a requeued job has all again
      max_nodes_ = nodes.size() - 1;
      return max_nodes_ > 0 ? std::nullopt : std::optional(finish(last_code_));
    }
    max_nodes_ = wanted_;
    const bool told = received_stop_signal() != 0 || is_killed_by_stop_signal(end.code) || halts();
    if (is_final(end.code) || told || end.kind == LaunchEnd::Kind::asked) return finish(end.code);
    if (!job_runs()) return end.code;
    if (!has_started) return after_no_start(end, nodes);
    fruitless_launches_ = 0;
    return after_failure(end, nodes);
  }

  /// If nobody could say why the launch before this one failed, this one may have found out. A
  /// node is blamed once for a failure.
  void blame_for_earlier_failure() {
    const auto earlier = record_->earlier_failure();
    if (!blamed_ || !earlier) return;
    for (const auto& host : earlier->hosts)
      if (!contains(*blamed_, host)) blame(host, earlier->reason);
  }

  /// Leaves out a node that cannot serve the run, if another can take its place. It has not failed,
  /// so other jobs may use it.
  bool replace(const std::string& unfit, const std::string& reason) {
    const auto is_unfit = [&](const auto& node) { return is_same_host(node, unfit); };
    auto others = usable_nodes();
    const bool was_usable = std::erase_if(others, is_unfit) > 0;
    if (!was_usable || bad_nodes_.choose(others, max_nodes_).size() < max_nodes_) return false;
    say("{} is left out: {}", unfit, reason);
    std::ranges::copy_if(job_.nodes(), std::back_inserter(unusable_), is_unfit);
    return true;
  }

  std::optional<int> after_no_start(const LaunchEnd& end, const Nodes& nodes) {
    auto bad = job_.nodes_without_launch(nodes);
    auto others = usable_nodes();
    // The launcher itself may be at fault, for example with a wrong --mpi.
    const bool launches_nowhere = !blamed_ && bad.size() == nodes.size() &&
                                  job_.nodes_without_launch(others).size() == others.size();
    if (launches_nowhere) bad.clear();
    std::erase_if(others,
                  [&](const auto& node) { return std::ranges::find(bad, node) != bad.end(); });
    const bool enough = bad_nodes_.choose(others, max_nodes_).size() == max_nodes_;
    const bool last = fruitless_launches_ == pauses.size();
    if (!bad.empty() && (enough || last)) {
      for (const auto& node : bad) blame(node, "no program can be launched on it");
      unusable_.insert(unusable_.end(), bad.begin(), bad.end());
      fruitless_launches_ = 0;
      return {};
    }
    if (last) {
      say("llamesh has not started in {} launches (exit code {}), and no node is to blame: see "
          "above",
          pauses.size() + 1, end.code);
      return 1;  // not 75, at which some sites requeue a job: it would fare no better
    }
    const auto pause = pauses.at(fruitless_launches_++);
    say("llamesh has not started (exit code {}): retrying in {} s", end.code, pause.count());
    pause_for(pause);
    return {};
  }

  std::optional<int> after_failure(const LaunchEnd& end, const Nodes& nodes) {
    say("the run failed in step {} (exit code {}): {}", end.step, end.code, end.reason);
    bool has_faulty_rank = false;
    for (const auto& host : end.hosts) {
      if (!contains(nodes, host)) continue;  // leaving it out would change nothing
      blame(host, end.reason);
      has_faulty_rank = true;
    }
    if (!has_faulty_rank) {
      const auto usable = job_.living_nodes().usable;
      for (const auto& node : nodes) {
        if (std::ranges::find(usable, node) != usable.end()) continue;
        blame(node, "Slurm has lost it");
        has_faulty_rank = true;
      }
    }
    if (!has_faulty_rank && unexplained_step_ == end.step) {
      say("it is not launched again: it failed twice in step {}, and no node is to blame",
          end.step);
      return end.code;
    }
    unexplained_step_ = has_faulty_rank ? std::nullopt : std::optional(end.step);
    return relaunch_limit(end.code);
  }

  std::optional<int> relaunch_limit(int code) {
    const auto now = Clock::now();
    relaunches_.push_back(now);
    while (now - relaunches_.front() > 1h) relaunches_.pop_front();
    if (relaunches_.size() <= max_relaunches_per_hour) return {};
    say("it is not launched again: it failed {} times within an hour", relaunches_.size());
    return code;
  }

  /// Ends, and requeues the job if the run shall continue.
  int finish(int code) {
    if (code == 0 || is_final(code) || halts() || !job_runs()) return code;
    auto excluded = unusable_;
    for (const auto& node : job_.nodes())
      if (bad_nodes_.is_out(node) && std::ranges::find(excluded, node) == excluded.end())
        excluded.push_back(node);
    say("the run stopped (exit code {}): {} is requeued{}{}", code, job_.name(),
        excluded.empty() ? "" : " without ", fmt::join(excluded, ","));
    clean_up();
    job_.requeue(excluded);
    return code;
  }

  /// Removes the run's memory checkpoints, if any, before the job releases its nodes. If the nodes
  /// are already gone, the ranks had time to save and to remove them. Only once: after that, a job
  /// that is requeued takes no more steps.
  void clean_up() {
    if (std::exchange(is_clean_, true)) return;
    std::error_code ignored;
    if (std::filesystem::exists(folder_ / "checkpoints" / checkpoint::run_identity_name, ignored))
      job_.clean_up();
  }

  const SuperviseArguments& arguments_;
  std::filesystem::path folder_;
  SlurmJob job_;
  BadNodes bad_nodes_;
  std::optional<Nodes> blamed_;  ///< since the latest launch that started; empty: none has
  Nodes unusable_;               ///< in this job: cannot launch a program, or cannot serve the run
  std::size_t wanted_ = 0;       ///< nodes that the run asks for
  std::size_t max_nodes_ = 0;    ///< of the next launch: fewer if the run has refused that many
  std::optional<LaunchRecord> record_;
  Guard guard_;
  int last_code_ = 75;
  int launches_ = 0;
  bool is_clean_ = false;                         ///< clean_up() was called
  std::size_t fruitless_launches_ = 0;            ///< in a row
  std::optional<std::int64_t> unexplained_step_;  ///< of the latest failure, without a culprit
  std::deque<Clock::time_point> relaunches_;      ///< within the last hour
};

}  // namespace

int supervise(const SuperviseArguments& arguments) {
  std::signal(SIGCHLD, SIG_DFL);  // if the parent has left it ignored, exit codes are lost
  const std::filesystem::path folder = arguments.run;
  validate(!train::Deadline::halt_file_is_there(folder),
           "halt file {} present: the run does not start; remove it to continue",
           train::Deadline::halt_file(folder).string());
  make_folder(folder);
  const int code = Supervisor(arguments).run();
  return code > max_code ? 1 : code;
}

}  // namespace llamesh::app
