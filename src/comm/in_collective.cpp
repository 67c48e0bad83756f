#include "comm/in_collective.hpp"

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "comm/flight_record.hpp"

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

InCollective::InCollective(std::shared_ptr<const Members> members, const char* kind,
                           const char* subject, std::int64_t ticket)
    : members_(std::move(members)),
      kind_(kind),
      subject_(subject),
      since_(std::chrono::steady_clock::now()),
      ticket_(ticket != 0 ? ticket : FlightRecorder::instance().asked(*members_, kind, subject)),
      range_(kind, subject, members_->name) {
  {
    auto& [mutex, open, entered] = record();
    const std::lock_guard lock(mutex);
    number_ = ++entered[members_->id];
    open.push_back(this);
  }
  FlightRecorder::instance().started(ticket_, number_);
}

InCollective::~InCollective() {
  FlightRecorder::instance().finished(ticket_);
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::erase(open, this);
}

std::vector<OpenCollective> open_collectives() {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  std::vector<OpenCollective> all;
  all.reserve(open.size());
  for (const InCollective* one : open)
    all.push_back({one->members_, one->number_, one->kind_, one->subject_,
                   fmt::format("{}{}{} along {}", one->kind_, *one->subject_ == '\0' ? "" : " of ",
                               one->subject_, one->members_->name),
                   one->since_});
  return all;
}

std::int64_t collectives_entered(std::uint64_t members_id) {
  auto& [mutex, open, entered] = record();
  const std::lock_guard lock(mutex);
  const auto found = entered.find(members_id);
  return found == entered.end() ? 0 : found->second;
}

}  // namespace llamesh::comm
