#include "comm/diagnosis/watchdog.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/hang_diagnosis.hpp"
#include "comm/diagnosis/host_survey.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/mpi/time_limit.hpp"
#include "core/clock.hpp"
#include "core/median.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double shortest_limit = 60;
constexpr double limit_of_starting = 3600;  // a GiB of text may be tokenized
constexpr double typical_duration_factor = 5;
constexpr std::size_t durations_kept = 31;

/// The sender's activity, or one of these two.
struct Heartbeat {
  static constexpr std::int64_t goodbye = -1;  ///< the last one
  static constexpr std::int64_t alarm = -2;    ///< to be passed on
  std::int64_t activity = 0;
  std::int64_t step = 0;
};

}  // namespace

std::string describe(Activity activity, std::int64_t step) {
  switch (activity) {
    case Activity::starting:
      return "reading the inputs and data";
    case Activity::building:
      return "building the model";
    case Activity::training:
      return fmt::format("training step {}", step);
    case Activity::evaluating:
      return fmt::format("evaluating after step {}", step);
    case Activity::saving:
      return fmt::format("saving step {}", step);
    case Activity::copying:
      return fmt::format("copying step {} into memory", step);
    case Activity::resuming:
      return "loading a checkpoint";
    case Activity::ending:
      return "ending the run";
  }
  return "unknown work";
}

void set_waiting(Diagnosis& diagnosis, const RecordedCollective& collective) {
  diagnosis.axis = collective.members->name;
  diagnosis.collective = collective.call.kind.data();
  diagnosis.unit = collective.call.subject.data();
  diagnosis.waiting = collective.members->ranks;
  std::erase_if(diagnosis.waiting, [&](int rank) {
    return std::ranges::find(diagnosis.ranks, rank) != diagnosis.ranks.end();
  });
}

double longest_reasonable(std::vector<double> durations, double of_the_first, double at_least) {
  if (durations.empty()) return of_the_first;
  return std::max(
      {shortest_limit, at_least, typical_duration_factor * median(std::move(durations))});
}

Watchdog::Limits Watchdog::Limits::for_silence(std::chrono::milliseconds silence) {
  const Limits usual;
  const auto scaled = [&](std::chrono::milliseconds limit) {
    return limit * silence.count() / usual.silence.count();
  };
  Limits limits;
  limits.interval = std::min(usual.interval, scaled(usual.interval));
  limits.silence = silence;
  limits.silence_at_the_end = std::min(usual.silence_at_the_end, silence);
  limits.in_a_collective = scaled(usual.in_a_collective);
  limits.answer = scaled(usual.answer);
  return limits;
}

struct Watchdog::Watch {
  Watch(const Communicator& world, Alarm sound, Limits given)
      : group(world.duplicate()),
        alarm(std::move(sound)),
        limits(std::move(given)),
        hosts(world.all_gather(this_process().host)),
        previous((group.rank() + group.size() - 1) % group.size()),
        next((group.rank() + 1) % group.size()),
        hang_diagnosis(group, hosts, limits),
        survey(group, hosts, limits) {
    post_receive();
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void run(const std::stop_token& stop) {
    try {
      poll_until(stop);
    } catch (const std::exception& failed) {
      spdlog::warn("the watchdog has stopped: {}", failed.what());
    }
  }

  void poll_until(const std::stop_token& stop) {
    std::mutex sleeping;
    std::condition_variable_any wake;
    while (!stop.stop_requested()) {
      std::unique_lock lock(sleeping);
      wake.wait_for(lock, stop, limits.interval, [] { return false; });
      if (stop.stop_requested()) return;
      // A process that was itself stopped for a while (a suspended job) must not blame the others.
      const auto now = Clock::now();
      if (now - last_poll > limits.interval + limits.silence / 6) restart_clocks(now);
      last_poll = now;  // all that follows counts from it: the process may be stopped at any point
      FlightRecorder::instance().tick();
      send_heartbeat();
      receive_heartbeats();
      FlightRecorder::instance()
          .poll_queued();  // last: a driver that hangs must not silence this rank
      hang_diagnosis.poll(status());
      survey.poll(silent_for() > 3 * limits.interval ? std::optional(previous) : std::nullopt);
      const auto diagnosis = find_hang();
      if (!diagnosis && last_heartbeat.activity != Heartbeat::alarm) continue;
      forward_alarm();
      const auto sound = [&] {
        const std::lock_guard alarm_lock(mutex);
        return alarm;
      }();
      sounded = true;
      sound(diagnosis.value_or(Diagnosis{}));
      return;
    }
  }

  void begin(Activity activity, std::int64_t step, double of_the_first, double at_least) {
    const std::lock_guard lock(mutex);
    const auto now = Clock::now();
    auto& known = durations[doing.activity];
    if (known.size() == durations_kept) known.erase(known.begin());
    known.push_back(to_seconds(now - begun));
    doing = {static_cast<std::int64_t>(activity), step};
    FlightRecorder::instance().set_activity(static_cast<std::int32_t>(activity), step);
    begun = since = now;
    limit = longest_reasonable(durations[doing.activity], of_the_first, at_least);
  }

  void progress() {
    const std::lock_guard lock(mutex);
    since = Clock::now();
  }

  void restart_clocks(Clock::time_point now) {
    last_received = now;
    hang_diagnosis.reset();
    survey.reset();
    const std::lock_guard lock(mutex);
    since = now;
  }

  Heartbeat now_doing() {
    const std::lock_guard lock(mutex);
    return doing;
  }

  HangDiagnosis::RankStatus status() {
    const std::lock_guard lock(mutex);
    return {static_cast<Activity>(doing.activity), doing.step, to_seconds(last_poll - since), limit,
            heard ? to_seconds(last_poll - *heard) : std::numeric_limits<double>::infinity()};
  }

  void send_heartbeat() {
    if (group.size() == 1) return;
    if (!is_sent("a heartbeat")) return;  // the next rank is silent to the rank after it, too
    send(now_doing(), "a heartbeat");
  }

  void send(const Heartbeat& heartbeat, const char* what) {
    outgoing = heartbeat;
    if (!succeeded(MPI_Isend(&outgoing, 2, MPI_INT64_T, next, 0, native(group), &sending), what))
      sending = MPI_REQUEST_NULL;
  }

  /// Returns true if nothing is being sent.
  bool is_sent(const char* what) {
    int done = 0;
    if (!succeeded(MPI_Test(&sending, &done, MPI_STATUS_IGNORE), what)) {
      sending = MPI_REQUEST_NULL;
      return true;
    }
    return done != 0;
  }

  void forward_alarm() {
    const auto delivered = [&] {
      bool done = is_sent("an alarm");
      for (int tries = 0; !done && tries < 200; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        done = is_sent("an alarm");
      }
      return done;
    };
    if (group.size() == 1) return;
    if (!delivered()) {
      spdlog::warn("the alarm has not reached rank {}", next);
      return;
    }
    send({Heartbeat::alarm, 0}, "an alarm");
    delivered();
  }

  /// Returns true if the previous rank sends heartbeats: it has not said goodbye.
  bool expects_heartbeats() const {
    return group.size() > 1 && last_heartbeat.activity != Heartbeat::goodbye;
  }

  void post_receive() {
    if (group.size() == 1) return;
    if (!succeeded(MPI_Irecv(&incoming, 2, MPI_INT64_T, previous, 0, native(group), &receiving),
                   "a heartbeat"))
      receiving = MPI_REQUEST_NULL;
  }

  void receive_heartbeats() {
    if (receiving == MPI_REQUEST_NULL && expects_heartbeats()) post_receive();
    while (receiving != MPI_REQUEST_NULL) {
      int done = 0;
      if (!succeeded(MPI_Test(&receiving, &done, MPI_STATUS_IGNORE), "a heartbeat")) {
        receiving = MPI_REQUEST_NULL;  // posted again at the next interval
        return;
      }
      if (done == 0) return;
      last_heartbeat = incoming;
      heard = last_received = Clock::now();
      if (expects_heartbeats()) post_receive();
      if (last_heartbeat.activity == Heartbeat::alarm) return;
    }
  }

  /// The rank at fault when something hangs.
  std::optional<Diagnosis> find_hang() {
    if (auto diagnosis = survey.diagnose(silent_rank(), status())) return diagnosis;
    if (auto diagnosis = hang_diagnosis.diagnose()) return diagnosis;
    // The ranks that wait for this one know in which collective: they report first.
    const auto mine = status();
    const double later = group.size() > 1 ? 6 * to_seconds(limits.interval) : 0;
    if (mine.stalled <= mine.limit + later || hang_diagnosis.waits_for_another()) return {};
    return stuck(mine);
  }

  /// The previous rank's silence so far.
  Clock::duration silent_for() const {
    return expects_heartbeats() ? last_poll - last_received : Clock::duration::zero();
  }

  HostSurvey::SilentRank silent_rank() const {
    return {.rank = previous,
            .silent = silent_for(),
            .limit = limits.job_ends() ? limits.silence_at_the_end : limits.silence,
            .activity = static_cast<Activity>(last_heartbeat.activity),
            .step = last_heartbeat.step};
  }

  Diagnosis stuck(const HangDiagnosis::RankStatus& mine) {
    const auto open = FlightRecorder::instance().in_progress();
    const auto doing_now = describe(mine.activity, mine.step) +
                           (open.empty() ? "" : ", in the " + title(open.front().call));
    Diagnosis diagnosis{fmt::format("{} has been {} for {:.0f} s and makes no progress",
                                    name_of(group.rank()), doing_now, mine.stalled),
                        {group.rank()},
                        {host_of(group.rank())},
                        doing_now,
                        "stuck",
                        mine.activity,
                        mine.step};
    if (!open.empty()) set_waiting(diagnosis, open.front());
    return diagnosis;
  }

  const std::string& host_of(int rank) const { return hosts[static_cast<std::size_t>(rank)]; }
  std::string name_of(int rank) const { return fmt::format("rank {} on {}", rank, host_of(rank)); }

  /// Exchanges goodbyes with the two neighbors. After it no message is in flight.
  void shut_down() {
    thread.request_stop();
    thread.join();
    if (group.size() == 1) return;
    const TimeLimit leave("the end of the run", mpi_timeout(std::getenv, group.size()),
                          group.rank());
    hang_diagnosis.shut_down(sounded);
    survey.shut_down(sounded);
    wait(sending, "the goodbye");
    outgoing = {Heartbeat::goodbye, 0};
    check(MPI_Isend(&outgoing, 2, MPI_INT64_T, next, 0, native(group), &sending), "the goodbye");
    while (receiving != MPI_REQUEST_NULL) {
      wait(receiving, "the goodbye");
      if (incoming.activity != Heartbeat::goodbye) post_receive();
    }
    wait(sending, "the goodbye");
  }

  Communicator group;
  Alarm alarm;
  Limits limits;
  std::vector<std::string> hosts;
  int previous;
  int next;
  HangDiagnosis hang_diagnosis;
  HostSurvey survey;
  bool sounded = false;  ///< the alarm

  Heartbeat outgoing;
  Heartbeat incoming;
  Heartbeat last_heartbeat;  ///< received from the previous rank
  MPI_Request sending = MPI_REQUEST_NULL;
  MPI_Request receiving = MPI_REQUEST_NULL;
  Clock::time_point last_poll = Clock::now();
  Clock::time_point last_received = last_poll;  ///< or when the clocks were restarted
  std::optional<Clock::time_point> heard;  ///< the previous rank, which is then known to have lived

  std::mutex mutex;  ///< guards the alarm and this rank's activity
  Heartbeat doing{static_cast<std::int64_t>(Activity::starting), 0};
  Clock::time_point begun = Clock::now();
  Clock::time_point since = begun;  ///< the last progress
  double limit = limit_of_starting;
  std::map<std::int64_t, std::vector<double>> durations;  ///< of earlier activities, seconds

  std::jthread thread;
};

Watchdog::Watchdog(const Communicator& world, Alarm alarm, Limits limits)
    : watch_(std::make_unique<Watch>(world, std::move(alarm), std::move(limits))) {}

Watchdog::~Watchdog() {
  if (may_free()) {
    watch_->shut_down();
  } else {
    watch_->thread = {};  // stops and joins; MPI may still write into the rest, which stays
    static_cast<void>(watch_.release());
  }
}

void Watchdog::begin(Activity activity, std::int64_t step, std::chrono::seconds of_the_first,
                     std::chrono::seconds at_least) {
  watch_->begin(activity, step, static_cast<double>(of_the_first.count()),
                static_cast<double>(at_least.count()));
}

void Watchdog::progress() {
  watch_->progress();
}

void Watchdog::await_diagnosis() const {
  // A rank outside the majority reports after the silence and a sixth of it (HostSurvey).
  std::this_thread::sleep_for(watch_->limits.silence * 3 / 2);
}

void Watchdog::set_alarm(Alarm alarm) {
  const std::lock_guard lock(watch_->mutex);
  watch_->alarm = std::move(alarm);
}

}  // namespace llamesh::comm
