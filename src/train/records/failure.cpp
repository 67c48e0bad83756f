#include "train/records/failure.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "comm/diagnosis/fingerprint_check.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

using comm::Activity;
using comm::FlightEntry;
using comm::FlightSnapshot;

constexpr std::array phases{"starting",   "building", "resuming", "training",
                            "evaluating", "saving",   "copying",  "ending"};

std::string phase_of(std::int64_t activity) {
  const bool known = activity >= 0 && activity < std::ssize(phases);
  return known ? phases[static_cast<std::size_t>(activity)] : "";
}

std::string doing(const FlightSnapshot& snapshot) {
  return comm::describe(static_cast<Activity>(snapshot.activity), snapshot.step);
}

bool was_asked_to_end(const FlightSnapshot& snapshot) {
  return (snapshot.stop_signals & (1U << static_cast<unsigned>(SIGTERM))) != 0;
}

/// Returns the oldest collective that the rank had not left; null: none.
const FlightEntry* open_in(const FlightSnapshot& snapshot) {
  const FlightEntry* oldest = nullptr;
  for (const auto& record : snapshot.records)
    if (record.in_progress() && (oldest == nullptr || record.ticket < oldest->ticket))
      oldest = &record;
  return oldest;
}

bool is_member(const FlightSnapshot& snapshot, std::uint64_t group) {
  return std::ranges::any_of(snapshot.records, [&](const FlightEntry& record) {
    return record.ticket != 0 && record.group == group;
  });
}

using ByRank = std::map<int, const FlightSnapshot*>;

/// Maps ranks to their records from the newest launch.
ByRank by_rank_of(std::span<const FlightSnapshot> records) {
  const auto newest = std::ranges::max_element(records, {}, &FlightSnapshot::job)->job;
  ByRank by_rank;
  for (const auto& snapshot : records)
    if (snapshot.job == newest) by_rank.emplace(snapshot.rank, &snapshot);
  return by_rank;
}

/// Returns the ranks that ended before the others were asked to: whoever ends a job sends SIGTERM
/// to the ranks still running. If nobody was asked, returns those last seen well before the latest
/// one.
std::vector<int> died_first(const ByRank& by_rank) {
  constexpr std::int64_t two_heartbeats = 2'500'000'000;  // ns
  const bool some_asked = std::ranges::any_of(
      by_rank, [](const auto& entry) { return was_asked_to_end(*entry.second); });
  std::int64_t last = 0;
  for (const auto& [rank, snapshot] : by_rank) last = std::max(last, snapshot->alive_at);
  std::vector<int> died;
  for (const auto& [rank, snapshot] : by_rank)
    if (some_asked ? !was_asked_to_end(*snapshot) : snapshot->alive_at + two_heartbeats < last)
      died.push_back(rank);
  std::ranges::stable_sort(died, {}, [&](int rank) { return by_rank.at(rank)->alive_at; });
  return died;
}

std::vector<int> without_record(const ByRank& by_rank) {
  std::vector<int> missing;
  for (int rank = 0; rank < by_rank.begin()->second->world_size; ++rank)
    if (!by_rank.contains(rank)) missing.push_back(rank);
  return missing;
}

/// Returns the reason recorded by the lowest rank that recorded one (comm::RankEnd).
std::optional<Failure> noted(const ByRank& by_rank) {
  for (const auto& [rank, snapshot] : by_rank) {
    const auto& end = snapshot->end;
    if (end.exit_code < 0 || end.detail.front() == '\0') continue;
    return Failure{.kind = end.kind.data(),
                   .rank = end.faulty_rank,
                   .host = end.host.data(),
                   .phase = phase_of(snapshot->activity),
                   .step = snapshot->step,
                   .detail = end.detail.data()};
  }
  return {};
}

/// Returns true if the missing ranks may be those of one lost host: none of its ranks was seen.
bool may_be_one_lost_host(const std::vector<int>& missing, const ByRank& by_rank) {
  std::set<std::string_view> lost;  // hosts, according to the ranks before them
  std::set<std::string_view> seen;
  for (const auto& [rank, snapshot] : by_rank) {
    seen.insert(snapshot->host.data());
    if (std::ranges::binary_search(missing, (rank + 1) % snapshot->world_size))
      lost.insert(snapshot->next_host.data());
  }
  return lost.size() <= 1 &&
         std::ranges::none_of(lost, [&](auto host) { return seen.contains(host); });
}

/// Sets the ranks that waited in a collective with the faulty rank, and describes that collective.
std::string set_waiting(Failure& failure, const ByRank& by_rank) {
  const auto found = by_rank.find(failure.rank);
  std::string in_what;
  for (const auto& [rank, snapshot] : by_rank) {
    if (rank == failure.rank) continue;
    const auto* const open = open_in(*snapshot);
    if (open == nullptr || (found != by_rank.end() && !is_member(*found->second, open->group)))
      continue;
    if (failure.waiting.empty()) {
      failure.axis = open->axis.data();
      failure.collective = open->kind.data();
      failure.unit = open->subject.data();
      in_what = fmt::format("{} (number {} there)", title(*open), open->number);
    }
    failure.waiting.push_back(rank);
  }
  if (failure.waiting.empty()) return "nobody waited for it";
  return fmt::format("{} waited in the {}", comm::list_of_ranks(failure.waiting), in_what);
}

Failure killed(const std::vector<int>& died, const ByRank& by_rank) {
  const FlightSnapshot& snapshot = *by_rank.at(died.front());
  Failure failure{.kind = "killed",
                  .rank = snapshot.rank,
                  .host = snapshot.host.data(),
                  .phase = phase_of(snapshot.activity),
                  .step = snapshot.step};
  const auto* const open = open_in(snapshot);
  const auto waited = set_waiting(failure, by_rank);
  failure.detail = fmt::format(
      "rank {} on {} was killed while {}{}; {}{}", failure.rank, failure.host, doing(snapshot),
      open == nullptr ? ""
                      : fmt::format(", in the {} (number {} there)", title(*open), open->number),
      waited,
      died.size() > 1 ? fmt::format("; so were {}", comm::list_of_ranks(std::span(died).subspan(1)))
                      : "");
  return failure;
}

Failure vanished(const std::vector<int>& missing, const ByRank& by_rank) {
  const FlightSnapshot& witness = *by_rank.begin()->second;
  const auto before = by_rank.find((missing.front() + witness.world_size - 1) % witness.world_size);
  Failure failure{.kind = "vanished",
                  .rank = missing.front(),
                  .host = before == by_rank.end() ? "" : before->second->next_host.data(),
                  .phase = phase_of(witness.activity),
                  .step = witness.step};
  const auto waited = set_waiting(failure, by_rank);
  failure.detail = fmt::format(
      "{}{} left no record here, as when a node is lost; the others were {}; {}",
      comm::list_of_ranks(missing),
      failure.host.empty() ? "" : " (the first on " + failure.host + ")", doing(witness), waited);
  return failure;
}

bool ended_by_itself(const FlightSnapshot& snapshot) {
  return snapshot.end.exit_code >= 0;
}

/// Quotes the rank that ended by itself, if there is one.
Failure unknown(const std::vector<int>& missing, const ByRank& by_rank) {
  const auto ended = std::ranges::find_if(
      by_rank, [](const auto& entry) { return ended_by_itself(*entry.second); });
  const FlightSnapshot& witness = *(ended == by_rank.end() ? by_rank.begin() : ended)->second;
  Failure failure{.kind = "unknown", .phase = phase_of(witness.activity), .step = witness.step};
  failure.detail = fmt::format(
      "why it ended is not known{}; rank {} was {}{}",
      missing.empty() ? "" : ": " + comm::list_of_ranks(missing) + " left no record here",
      witness.rank, doing(witness),
      ended_by_itself(witness)
          ? fmt::format(" and ended with {} because of another rank", witness.end.exit_code)
          : "");
  return failure;
}

Failure all_ended(const ByRank& by_rank) {
  const FlightSnapshot& witness = *by_rank.begin()->second;
  Failure failure{.kind = "ended", .phase = phase_of(witness.activity), .step = witness.step};
  failure.detail =
      fmt::format("all {} ranks ended at once while {}; none of them died before the others",
                  by_rank.size(), doing(witness));
  return failure;
}

}  // namespace

Failure failure_of(const comm::Diagnosis& diagnosis) {
  return {diagnosis.kind,
          diagnosis.ranks.empty() ? -1 : diagnosis.ranks.front(),
          diagnosis.hosts.empty() ? "" : diagnosis.hosts.front(),
          phase_of(static_cast<std::int64_t>(diagnosis.activity)),
          diagnosis.step,
          diagnosis.axis,
          diagnosis.collective,
          diagnosis.unit,
          diagnosis.waiting,
          diagnosis.line};
}

Failure failure_of_error(const std::string& error) {
  const auto [activity, step] = comm::FlightRecorder::instance().activity();
  return {.kind = "error",
          .rank = this_process().rank,
          .host = this_process().host,
          .phase = phase_of(activity),
          .step = step,
          .detail = error};
}

bool is_fault_of_reporter(std::string_view error) {
  constexpr std::array<std::string_view, 3> texts{
      "failed on the GPU by a fault of it or of its node", "in weights or moments from ranks",
      "computed different bits for the same micro-batch"};
  return std::ranges::any_of(texts, [&](auto text) { return error.find(text) != error.npos; });
}

std::optional<Failure> failure_of_records(std::span<const FlightSnapshot> records) {
  if (records.empty()) return {};
  const auto by_rank = by_rank_of(records);
  if (auto failure = noted(by_rank)) return failure;
  const auto missing = without_record(by_rank);
  if (std::ranges::any_of(by_rank,
                          [](const auto& entry) { return ended_by_itself(*entry.second); }))
    return unknown(missing, by_rank);
  const auto died = died_first(by_rank);
  if (!died.empty() && died.size() < by_rank.size()) return killed(died, by_rank);
  if (missing.empty()) return all_ended(by_rank);
  return may_be_one_lost_host(missing, by_rank) ? vanished(missing, by_rank)
                                                : unknown(missing, by_rank);
}

std::filesystem::path failure_file(const std::filesystem::path& run_folder) {
  return run_folder / "failure.json";
}

std::string to_text(const Failure& failure) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  nlohmann::ordered_json json = {{"kind", failure.kind},
                                 {"rank", failure.rank},
                                 {"host", failure.host},
                                 {"phase", failure.phase},
                                 {"step", failure.step},
                                 {"axis", failure.axis},
                                 {"collective", failure.collective},
                                 {"unit", failure.unit},
                                 {"waiting", failure.waiting},
                                 {"detail", failure.detail},
                                 {"at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))}};
  if (failure.rank < 0) json["rank"] = nullptr;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_failure(const std::filesystem::path& run_folder, const Failure& failure) {
  write_durably(failure_file(run_folder), to_text(failure));
}

}  // namespace llamesh::train
