#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/hang_diagnosis.hpp"
#include "comm/diagnosis/host_survey.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mpi/mpi.hpp"
#include "core/process.hpp"
#include "patience.hpp"
#include "support.hpp"

// Parts of the watchdog that a test drives itself. What they find then does not depend on when the
// ranks get a processor.
namespace llamesh::test {

/// A limit that no test reaches.
inline constexpr std::chrono::hours never(1);
/// No heartbeat has ever come.
inline constexpr double always_silent = 1e9;

/// Barrier for ranks that go on working until all have come.
class Arrival {
 public:
  /// Collective.
  Arrival() : group_(world().duplicate()) {}

  void come() { MPI_Ibarrier(comm::native(group_), &request_); }
  bool all_have_come() {
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    return done != 0;
  }
  void come_and_wait() {
    come();
    while (!all_have_come()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  /// Calls `poll` until it has returned true, and then until all ranks have come.
  template <class Poll>
  void poll_until(const Poll& poll) {
    const auto end = std::chrono::steady_clock::now() + stretched(std::chrono::seconds(60));
    const auto polls_in_vain = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return !poll();
    };
    while (polls_in_vain())
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "rank " << world().rank() << " has found nothing";
        break;
      }
    come();
    while (!all_have_come()) polls_in_vain();
  }

 private:
  comm::Communicator group_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// A HangDiagnosis on each rank, without a watchdog around it.
struct DiagnosisByHand {
  comm::Communicator group = world().duplicate();
  std::vector<std::string> hosts = world().all_gather(this_process().host);
  comm::HangDiagnosis diagnosis;
  Arrival arrival;

  /// Collective.
  explicit DiagnosisByHand(std::chrono::milliseconds answer)
      : diagnosis(group, hosts,
                  {.interval = std::chrono::milliseconds(20),
                   .in_a_collective = std::chrono::milliseconds(0),
                   .answer = answer}) {}
  /// Collective.
  ~DiagnosisByHand() { diagnosis.shut_down(true); }
  DiagnosisByHand(const DiagnosisByHand&) = delete;
  DiagnosisByHand& operator=(const DiagnosisByHand&) = delete;
};

/// Stands in for the Watchdog on one rank: it passes the alarm on but never reports itself, so that
/// the other ranks have to, however long they take.
class WatchdogByHand {
 public:
  /// Collective: the other ranks construct a Watchdog.
  WatchdogByHand()
      : group_(world().duplicate()),
        hosts_(world().all_gather(this_process().host)),
        diagnosis_(group_, hosts_, limits),
        survey_(group_, hosts_, limits) {}
  /// Collective, like the Watchdog's.
  ~WatchdogByHand() {
    diagnosis_.shut_down(true);
    survey_.shut_down(true);
    send(goodbye);
    while (receive() != goodbye) continue;
  }
  WatchdogByHand(const WatchdogByHand&) = delete;
  WatchdogByHand& operator=(const WatchdogByHand&) = delete;

  /// Sends no heartbeat, but answers that this is what the rank does, until it hears an alarm.
  void answer(const comm::HangDiagnosis::RankStatus& status) {
    run([&] {
      comm::FlightRecorder::instance().poll_queued();
      diagnosis_.poll(status);
      survey_.poll({});
    });
  }
  /// Sends heartbeats but gives no answer, until it hears an alarm.
  void only_live() {
    run([&] { send(0); });
  }

 private:
  static constexpr std::int64_t goodbye = -1, alarm = -2;  // as in watchdog.cpp
  inline static const comm::Watchdog::Limits limits{.in_a_collective = never};

  template <class Work>
  void run(const Work& work) {
    const auto end = std::chrono::steady_clock::now() + stretched(std::chrono::seconds(60));
    do {
      work();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (hears_alarm()) return send(alarm);
    } while (std::chrono::steady_clock::now() < end);
    ADD_FAILURE() << "no rank has raised an alarm";
  }
  bool hears_alarm() const {
    int comes = 0;
    MPI_Iprobe(previous(), 0, comm::native(group_), &comes, MPI_STATUS_IGNORE);
    return comes != 0 && receive() == alarm;
  }
  std::int64_t receive() const {
    std::array<std::int64_t, 2> heartbeat{};
    MPI_Recv(heartbeat.data(), 2, MPI_INT64_T, previous(), 0, comm::native(group_),
             MPI_STATUS_IGNORE);
    return heartbeat[0];
  }
  void send(std::int64_t activity) const {
    const std::array<std::int64_t, 2> heartbeat{activity, 0};
    MPI_Send(heartbeat.data(), 2, MPI_INT64_T, (group_.rank() + 1) % group_.size(), 0,
             comm::native(group_));
  }
  int previous() const { return (group_.rank() + group_.size() - 1) % group_.size(); }

  comm::Communicator group_;
  std::vector<std::string> hosts_;
  comm::HangDiagnosis diagnosis_;
  comm::HostSurvey survey_;
};

}  // namespace llamesh::test
