#include "comm/diagnosis/in_collective.hpp"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "comm/diagnosis/flight_record.hpp"

namespace llamesh::comm {
namespace {

struct Record {
  std::mutex mutex;
  std::vector<const InCollective*> open;
  std::unordered_map<std::uint64_t, std::int64_t> entered;  // per Members::id
};

Record& record() {
  static Record of_this_process;
  return of_this_process;
}

}  // namespace

InCollective::InCollective(std::shared_ptr<const Members> members, const CollectiveCall& call,
                           std::int64_t ticket)
    : entered_{std::move(members), call},
      ticket_(ticket != 0 ? ticket
                          : FlightRecorder::instance().asked(*entered_.members, entered_.call)),
      range_(call.kind.data(), call.subject.data(), entered_.members->name) {
  entered_.call.along(*entered_.members);
  {
    auto& [mutex, open, entered] = record();
    const std::lock_guard lock(mutex);
    entered_.call.number = ++entered[entered_.members->id];
    open.push_back(this);
  }
  FlightRecorder::instance().started(ticket_, entered_.call.number);
}

InCollective::~InCollective() {
  FlightRecorder::instance().finished(ticket_);
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::erase(open, this);
}

std::vector<CollectiveInProgress> collectives_in_progress() {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::vector<CollectiveInProgress> all;
  all.reserve(open.size());
  for (const InCollective* one : open) all.push_back(one->entered_);
  return all;
}

std::int64_t collectives_entered(std::uint64_t members_id) {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  const auto found = entered.find(members_id);
  return found == entered.end() ? 0 : found->second;
}

}  // namespace llamesh::comm
