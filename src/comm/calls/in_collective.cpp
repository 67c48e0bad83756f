#include "comm/calls/in_collective.hpp"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace llamesh::comm {
namespace {

struct Record {
  std::mutex mutex;
  std::vector<const OpenCollective*> open;
  std::unordered_map<std::uint64_t, std::int64_t> entered;  // per Members::id
};

Record& record() {
  static Record of_this_process;
  return of_this_process;
}

}  // namespace

OpenCollective::OpenCollective(std::shared_ptr<const Members> members, const CollectiveCall& call,
                               std::int64_t ticket, Traced traced)
    : entered_{std::move(members), call}, ticket_(ticket), traced_(traced) {
  entered_.call.along(*entered_.members);
  {
    auto& [mutex, open, entered] = record();
    const std::lock_guard lock(mutex);
    auto& newest = entered[entered_.members->id];
    newest = call.number == 0 ? newest + 1 : call.number;
    entered_.call.number = newest;
    open.push_back(this);
  }
  FlightRecorder::instance().started(ticket_, entered_.call.number);
}

OpenCollective::~OpenCollective() {
  FlightRecorder::instance().finished(ticket_, traced_);
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::erase(open, this);
}

InCollective::InCollective(const std::shared_ptr<const Members>& members,
                           const CollectiveCall& call, std::int64_t ticket)
    : open_(members, call, ticket != 0 ? ticket : FlightRecorder::instance().asked(*members, call)),
      range_(call.kind.data(), call.subject.data(), members->name) {}

std::vector<CollectiveInProgress> collectives_in_progress() {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::vector<CollectiveInProgress> all;
  all.reserve(open.size());
  for (const OpenCollective* one : open) all.push_back(one->entered_);
  return all;
}

std::int64_t collectives_entered(std::uint64_t members_id) {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  const auto found = entered.find(members_id);
  return found == entered.end() ? 0 : found->second;
}

}  // namespace llamesh::comm
